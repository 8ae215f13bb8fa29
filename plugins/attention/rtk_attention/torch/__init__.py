"""Paged attention in plain torch: any device, any float type, any page size. The reference of every other backend."""

from rtk.plugin import Plugin, hookimpl


@hookimpl
def rtk_plugins() -> list[Plugin]:
    return [
        Plugin(
            kind="attention",
            name="torch",
            summary="torch operations on any device; on a CPU its flash kernel, which native outruns in decoding",
            target="rtk_attention.torch.backend:TorchAttention",
        ),
        Plugin(
            kind="attention",
            name="torch-plain",
            summary="plain torch that gathers what each row sees: slower, to compare with",
            target="rtk_attention.torch.backend:PlainTorchAttention",
        ),
    ]
