"""Options of SGLang and vLLM that rtk calls something else, or has no need of; with defaults in `docs/flags.md`."""

INSTEAD = {
    # cache and memory
    "--disable-radix-cache": "--disable-cache",
    "--enable-prefix-caching": "prefixes are cached unless there is --disable-cache",
    "--no-enable-prefix-caching": "--disable-cache",
    "--block-size": "--page-size",
    "--radix-eviction-policy": "--eviction",
    "--enable-hierarchical-cache": "what is evicted is computed anew",
    "--kv-offloading-size": "what is evicted is computed anew",
    "--mem-fraction-static": "--mem-fraction, of the memory that is free once the weights are there",
    "--gpu-memory-utilization": "--mem-fraction, of the memory that is free once the weights are there",
    "--max-total-tokens": "--pool-tokens",
    "--num-gpu-blocks-override": "--pool-tokens, in tokens",
    "--kv-cache-memory-bytes": "--pool-tokens, in tokens",
    "--kv-cache-dtype": "K/V are kept in the type of the model",
    # scheduling
    "--schedule-policy": "--schedule",
    "--scheduling-policy": "--schedule",
    "--schedule-conservativeness": "--conservativeness",
    "--max-num-batched-tokens": "--chunked-prefill-size, which does not count requests that decode",
    "--enable-chunked-prefill": "prompts are cut unless there is --chunked-prefill-size -1",
    "--no-enable-chunked-prefill": "--chunked-prefill-size -1",
    "--enable-mixed-chunk": "--mixed-chunk true",
    "--disable-overlap-schedule": "--overlap false",
    "--async-scheduling": "--overlap true",
    "--no-async-scheduling": "--overlap false",
    "--max-running-requests": "--max-running",
    "--max-num-seqs": "--max-running",
    "--max-queued-requests": "--max-queue",
    "--max-num-queued-reqs": "--max-queue, which does not count requests that run",
    "--enable-priority-scheduling": "--schedule priority",
    "--disable-priority-preemption": "the important preempt only with --set schedule.priority.preempt=true",
    "--retraction-policy": "--retraction",
    # computing
    "--attention-backend": "--attention",
    "--grammar-backend": "--grammar",
    "--structured-outputs-config": "--grammar",
    "--disable-cuda-graph": "--cuda-graphs false",
    "--enforce-eager": "--cuda-graphs false",
    "--tp-size": "a model runs on one device",
    "--tensor-parallel-size": "a model runs on one device",
    "--quantization": "--quantize int8, as weights are loaded",
    "--enable-lora": "a server has one model, without adapters",
    # model
    "--model-path": "--model",
    "--max-model-len": "--context-length",
    "--served-model-name": "--served-name",
    "--download-dir": "--cache-dir",
    "--random-seed": "each request brings its seed",
    "--seed": "each request brings its seed",
    # server
    "--tool-call-parser": "--tool-parser",
    "--enable-auto-tool-choice": "models call tools as their chat templates say, or as --tool-parser",
    "--enable-log-requests": "--log-requests",
    "--enable-cache-report": "answers always tell what was cached",
    "--enable-prompt-tokens-details": "answers always tell what was cached",
    "--stream-interval": "every token is sent as it comes",
    "--enable-metrics": "/metrics is always there",
}
"""What to write instead; or, where that does not begin with an option, why there is none."""


def told(name: str, own: set[str]) -> str:
    """What a command with options `own` says of one that is not among them; empty: nothing is known of it."""
    instead = INSTEAD.get(name, "")
    if not instead.startswith("--"):
        return instead and f"rtk has none: {instead}"
    return f"in rtk it is {instead}" if instead.split()[0].rstrip(",") in own else ""
