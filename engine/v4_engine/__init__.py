"""The V4 model and its cache on one worker: forward, arena, prefix tree, scheduler, sampler, step loop."""
