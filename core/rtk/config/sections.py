"""What sections of the configuration tree are made of."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from rtk.errors import ConfigError

if TYPE_CHECKING:
    from rtk.plugin.info import Kind, Options

MIB = 1024 * 1024
MAX_TOKENS = 2**31 - 1
"""Tables of tokens, slots and requests hold int32."""
MAX_SECONDS = 86_400.0


def plugin_name(name: str) -> str:
    """The one spelling of a plugin's name."""
    from rtk.plugin.info import canonical  # the plugin package brings numpy, which help texts can do without

    return canonical(name)


def at_home(path: Path) -> Path:
    """A path with the home folder in place of `~`, for validating."""
    try:
        return path.expanduser()
    except RuntimeError:  # ~somebody
        raise ValueError("must be a path; there is no home folder of that name") from None


def flag(name: str) -> dict[str, Any]:
    """Give a field a flag of its own instead of `--<field-name>`."""
    return {"flag": name}


class Section(BaseModel):
    """A part of the tree: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PluginSection(Section):
    """A section that chooses one plugin of a kind and holds the options of every installed one."""

    kind: ClassVar["Kind"]
    choice: ClassVar[str]
    """The field that names the chosen plugin."""
    words: ClassVar[tuple[str, ...]] = ()
    """What it may say instead of a name: `auto`, `none`."""

    @property
    def chosen(self) -> str:
        """Name of the chosen plugin."""
        name: str = getattr(self, self.choice)
        return name

    @property
    def all_chosen(self) -> tuple[str, ...]:
        """Names of the plugins that may be used: one, but where a section takes several; by `auto` all, or none."""
        if self.chosen not in self.words:
            return (self.chosen,)
        installed = (plugin_name(field.alias) for field in type(self).model_fields.values() if field.alias)
        return tuple(installed) if self.chosen == "auto" else ()

    def options(self, name: str | None = None) -> "Options":
        """The validated options of the plugin `name`, by default of the chosen one."""
        name = plugin_name(name or self.chosen)
        try:
            found: Options = getattr(self, options_field(name))
        except AttributeError:
            raise ConfigError(
                f"this configuration holds no options of {self.kind} plugin {name!r}; "
                "build it with rtk.config.load.config_from, which asks what is installed"
            ) from None
        return found


def options_field(name: str) -> str:
    """The attribute that holds a plugin's options; in keys it goes by the plugin's own name."""
    return f"{plugin_name(name).replace('-', '_')}_options"
