"""The names of a checkpoint's tensors: three naming schemes are translated to DeepSeek's own (reference 3.1, 3.3).

The schemes are DeepSeek's, `layers.0.attn.wq_a.weight`; that of transformers' modules,
`model.layers.0.self_attn.q_a_proj.weight`, with all routed experts of a layer fused into one tensor; and that of
transformers' `save_pretrained` by default, which is DeepSeek's with the prefix `model.`, a few names of modules, and
`model.layers.0.attn.norm.weight`.
"""

import re
from collections.abc import Iterator

from torch import Tensor

_DRAFT = re.compile(r"mtp\.\d+\.")  # MTP and DSpark modules, which the engine does not run

_RENAMES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^model\.", ""),
        (r"^embed_tokens\.", "embed."),
        (r"^lm_head\.", "head."),
        (r"^hc_head\.hc_(fn|base|scale)$", r"hc_head_\1"),
        (r"\.input_layernorm\.", ".attn_norm."),
        (r"\.post_attention_layernorm\.", ".ffn_norm."),
        (r"\.(attn|ffn)_hc\.(fn|base|scale)$", r".hc_\1_\2"),
        (r"\.attn\.norm\.", ".attn.kv_norm."),
        (r"\.self_attn\.compressor\.indexer\.q_b_proj\.", ".attn.indexer.wq_b."),
        (r"\.self_attn\.compressor\.indexer\.scorer\.weights_proj\.", ".attn.indexer.weights_proj."),
        (r"\.self_attn\.compressor\.indexer\.", ".attn.indexer.compressor."),
        (r"\.self_attn\.compressor\.", ".attn.compressor."),
        (r"\.self_attn\.sinks$", ".attn.attn_sink"),
        (r"\.self_attn\.q_a_proj\.", ".attn.wq_a."),
        (r"\.self_attn\.q_a_norm\.", ".attn.q_norm."),
        (r"\.self_attn\.q_b_proj\.", ".attn.wq_b."),
        (r"\.self_attn\.kv_proj\.", ".attn.wkv."),
        (r"\.self_attn\.kv_norm\.", ".attn.kv_norm."),
        (r"\.self_attn\.o_([ab])_proj\.", r".attn.wo_\1."),
        (r"compressor\.kv_proj\.", "compressor.wkv."),
        (r"compressor\.gate_proj\.", "compressor.wgate."),
        (r"compressor\.kv_norm\.", "compressor.norm."),
        (r"compressor\.position_bias$", "compressor.ape"),
        (r"\.mlp\.gate\.e_score_correction_bias$", ".ffn.gate.bias"),
        (r"\.mlp\.shared_experts\.gate_proj\.", ".ffn.shared_experts.w1."),
        (r"\.mlp\.shared_experts\.up_proj\.", ".ffn.shared_experts.w3."),
        (r"\.mlp\.shared_experts\.down_proj\.", ".ffn.shared_experts.w2."),
        (r"\.mlp\.", ".ffn."),
    )
]


def is_draft(name: str) -> bool:
    """Whether a stored tensor belongs to a draft module, in any naming scheme."""
    return _DRAFT.match(name.removeprefix("model.")) is not None


def translate(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a stored tensor under DeepSeek's name. Transformers' fused experts are split into one tensor each."""
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    fused = tensor.ndim == 3  # a tensor of another rank is passed on, and the caller reports its shape
    if fused and name.endswith("ffn.experts.gate_up_proj") and tensor.shape[1] % 2 == 0:
        for e, both in enumerate(tensor):
            gate, up = both.chunk(2)
            yield name.replace("gate_up_proj", f"{e}.w1.weight"), gate
            yield name.replace("gate_up_proj", f"{e}.w3.weight"), up
    elif fused and name.endswith("ffn.experts.down_proj"):
        for e, down in enumerate(tensor):
            yield name.replace("down_proj", f"{e}.w2.weight"), down
    else:
        yield name, tensor
