"""The V4 model and its cache on one worker: forward pass, arena, prefix tree, scheduler, sampler, step loop."""
