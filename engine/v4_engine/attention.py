"""Attention of one layer (reference 2.3 to 2.9): window rows, compressed entries and sinks in one softmax.

The order within a layer matters. Old rows are read before new rows overwrite them in the ring. Entries are stored
before any query reads entries, so the query that closes a window sees that window's entry, rounded as later queries see
it.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from v4_core.config import C4, ModelConfig
from v4_engine.inputs import DenseEntries, Group, ScannedEntries, StepInputs, Windows
from v4_engine.kernels import Kernels
from v4_engine.params import Compressor, Layer
from v4_engine.stores import CacheMemory, RowStore

Angles = tuple[Tensor, Tensor]  # cos, sin


@dataclass(frozen=True)
class StepAngles:
    """The rotary angles of one step from one of the two tables."""

    tokens: Angles  # [S, r/2]
    c4: Angles  # [n, r/2] of the entries that close
    c128: Angles


@dataclass(frozen=True)
class Attention:
    """The attention of every layer over one cache."""

    config: ModelConfig
    kernels: Kernels
    memory: CacheMemory

    def __call__(self, layer_index: int, layer: Layer, x: Tensor, inputs: StepInputs, angles: StepAngles) -> Tensor:
        """Return the output [S, D] for normed input x [S, D]. Reads and writes the cache."""
        c, k = self.config, self.kernels
        acc = layer.kv_norm.dtype
        width = [c.q_lora_rank, c.head_dim, layer.in_proj.shape[0] - c.q_lora_rank - c.head_dim]
        latent, kv, index_weight = F.linear(x, layer.in_proj).split(width, dim=-1)
        latent = k.rms_norm(latent, layer.q_norm, c.rms_norm_eps)
        queries = F.linear(latent, layer.q_proj)
        heads = c.num_heads * c.head_dim
        query = k.head_norm(queries[:, :heads].unflatten(1, (c.num_heads, c.head_dim)), c.rms_norm_eps, acc)
        cos, sin = (a.unsqueeze(1) for a in angles.tokens)
        query = k.rotate(query, cos, sin) * c.head_dim**-0.5
        kv = k.rotate(k.rms_norm(kv, layer.kv_norm, c.rms_norm_eps), *angles.tokens)

        raw = self.memory.raw[layer_index]
        rows = torch.cat((raw.read(inputs.raw_old_row, kv.dtype), raw.round(kv)))
        raw.write(inputs.raw_write_row, rows[inputs.raw_write_from])
        if layer.state_proj is not None:
            self._compress(layer_index, layer, x.to(acc) @ layer.state_proj.T, inputs, angles)
        index_query = None
        if layer.ratio == C4:
            index_query = k.rotate(queries[:, heads:].to(acc).unflatten(1, (c.index_heads, c.index_dim)), cos, sin)
            index_weight = index_weight.to(acc) * (c.index_dim * c.index_heads) ** -0.5
        outs = [
            self._group(layer_index, layer, group, query, rows, index_query, index_weight) for group in inputs.groups
        ]
        out = k.rotate(torch.cat(outs) if len(outs) > 1 else outs[0], cos, -sin).to(x.dtype)
        grouped = out.view(x.shape[0], c.o_groups, -1).transpose(0, 1)
        mixed = torch.bmm(grouped, layer.wo_a.transpose(1, 2)).transpose(0, 1)
        return F.linear(mixed.flatten(1), layer.wo_b)

    def _compress(self, index: int, layer: Layer, states: Tensor, inputs: StepInputs, angles: StepAngles) -> None:
        """Run the layer's compressors over its projected states [S, 4d + 4di or 2d]."""
        memory, d = self.memory, self.config.head_dim
        assert layer.compressor is not None
        if layer.indexer is None:
            args = (states, inputs.c128, memory.states[index], memory.entries[index], angles.c128)
            self._close(layer.compressor, *args)
            return
        main, key = states.split([4 * d, states.shape[1] - 4 * d], dim=-1)
        args = (main, inputs.c4, memory.states[index], memory.entries[index], angles.c4)
        self._close(layer.compressor, *args)
        args = (key, inputs.index, memory.index_states[index], memory.index_keys[index], angles.c4)
        self._close(layer.indexer, *args)

    def _close(
        self,
        w: Compressor,
        states: Tensor,
        windows: Windows,
        store: RowStore,
        target: RowStore,
        angles: Angles,
    ) -> None:
        """Store the new state rows [S, c*2w] and the entries of the windows that close in this step."""
        states = states + w.ape[windows.phase]
        if windows.old_row.shape[0]:
            states = torch.cat((store.read(windows.old_row, states.dtype), states))
        store.write(windows.write_row, states if windows.write_from is None else states[windows.write_from])
        if windows.window.shape[0]:
            rows = states.view(-1, 2 * w.norm.shape[0])[windows.window]
            entries = self.kernels.compress(rows, windows.valid, w.norm, self.config.rms_norm_eps)
            target.write(windows.target, self.kernels.rotate(entries, *angles))

    def _group(
        self, index: int, layer: Layer, g: Group, query: Tensor, rows: Tensor, key: Tensor | None, weight: Tensor
    ) -> Tensor:
        """Return the attention outputs [tokens, H, d] of one group, in token order."""
        k = self.kernels
        if g.query is not None:
            query = query[g.query]
            key, weight = (None, weight) if key is None else (key[g.query], weight[g.query])
        width = query.shape[0] // g.tiles
        tiled = query.unflatten(0, (g.tiles, width))
        near, mask, sinks = rows[g.window_row], g.window_mask, layer.sinks
        entries = g.c4 if layer.ratio == C4 else g.c128 if layer.ratio else None
        if isinstance(entries, ScannedEntries):
            assert key is not None
            row, valid = self._select(index, entries, key, weight)
            if width > 1:
                shape = (g.tiles, width, -1)
                own = self.memory.entries[index].rows
                out = k.attend_selected(tiled, near, mask, own, row.view(shape), valid.view(shape), sinks)
                return _in_token_order(out, g)
            entries = DenseEntries(row, valid.unsqueeze(1), ~valid[:, 0])
        if entries is not None:
            far = self.memory.entries[index].read(entries.row, query.dtype)
            if entries.empty is not None:
                far.masked_fill_(entries.empty[:, None, None], 0)
            near, mask = torch.cat((near.to(far.dtype), far), dim=1), torch.cat((mask, entries.mask), dim=-1)
        return _in_token_order(k.attend(tiled, near, mask, sinks), g)

    def _select(self, index: int, scan: ScannedEntries, query: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the entry rows [T*Q, k] that the indexer selects, and which of them are valid."""
        k, tiles = self.kernels, scan.table.shape[0]
        width = query.shape[0] // tiles
        scores = k.index_scores(
            query.unflatten(0, (tiles, width)),
            weight.unflatten(0, (tiles, width)),
            self.memory.index_keys[index].rows,
            scan.pair_tile,
            scan.pair_page,
            scan.pair_row,
            scan.pages,
        )
        chosen, valid = k.select(scores.flatten(0, 1), scan.visible, self.config.index_topk)
        slot = scan.table.gather(1, (chosen // 64).view(tiles, -1)).view(chosen.shape)
        return slot * scan.entry_stride + chosen % 64, valid


def _in_token_order(out: Tensor, group: Group) -> Tensor:
    """Return outputs of tiles [T, Q, ...] as [tokens, ...]."""
    flat = out.flatten(0, 1)
    return flat if group.back is None else flat[group.back]
