"""The parts of Hydra and OmegaConf that are private or undocumented, and that this package needs.

`tests/config/test_hydra_internals.py` fails if a new version changes one of them; pyproject.toml bounds the versions.

- `hydra._internal.utils.get_args_parser` and the parser's `_option_string_actions`: Hydra's own flags.
- `hydra._internal.core_plugins.basic_sweeper.BasicSweeper`: sweeps over a grid; `GridSweeper` derives from it.
- `ConfigLoaderImpl._apply_overrides_to_config`: sets values in a composed configuration.
- `JobReturn._return_value`: the exception of a failed run; `return_value` would raise it.
- `DictConfig._get_node` and `_get_full_key`: a node without resolving it, and the path of a node.
- `omegaconf.grammar_parser` and the generated `OmegaConfGrammarParser`: the parse tree of an interpolation.
- `Singleton.get_state`, `set_state` and `GlobalHydra.clear`: the state of a running command.
- `hydra_plugins.hydra_optuna_sweeper._impl.create_params_from_overrides`: the plugin's parser of search spaces.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, grammar_parser
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar.gen.OmegaConfGrammarParser import OmegaConfGrammarParser

__all__ = ["BasicSweeper"]


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """Return Hydra's flags, and as `overrides` all other arguments."""
    return get_args_parser().parse_intermixed_args(list(arguments))


def is_flag(name: str) -> bool:
    """Return whether `--name` is a flag of Hydra."""
    return name in get_args_parser()._option_string_actions


def failure_of(run: JobReturn) -> Any:
    """Return the exception of a failed run."""
    return run._return_value


def parse_overrides(lines: Sequence[str]) -> list[Override]:
    """Parse arguments that are not flags."""
    return OverridesParser.create().parse_overrides(list(lines))


def apply_values(config: DictConfig, values: Sequence[Override]) -> None:
    """Apply arguments that set values, and choose no options, to a composed configuration."""
    ConfigLoaderImpl._apply_overrides_to_config(list(values), config)


def raw_node(node: DictConfig, key: str) -> Any:
    """Return an inner node, without resolving an interpolation."""
    return node._get_node(key)


def full_key(node: DictConfig, key: str = "") -> str:
    """Return the setting `key` of a node, or the node, with the names of all nodes above it."""
    return node._get_full_key(key)


def has_resolver(text: str) -> bool:
    """Return whether OmegaConf calls a resolver, as in `${oc.env:HOME}`; `${cache}` refers to another setting."""
    try:
        nodes = [grammar_parser.parse(text)] if "${" in text else []
    except OmegaConfBaseException:  # neither a text nor an interpolation
        return True
    while nodes:
        node = nodes.pop()
        if isinstance(node, OmegaConfGrammarParser.InterpolationResolverContext):
            return True
        nodes += getattr(node, "children", None) or []
    return False


@contextmanager
def outside_of_command() -> Iterator[None]:
    """Set the Hydra state of the running command aside, so that other configurations can be composed."""
    if not GlobalHydra.instance().is_initialized():
        yield
        return
    of_the_command = Singleton.get_state()
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        Singleton.set_state(of_the_command)


def parse_search_space(arguments: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the distributions of the searched settings, and the values of the others."""
    from hydra_plugins.hydra_optuna_sweeper._impl import create_params_from_overrides

    searched, fixed, _ = create_params_from_overrides(arguments)
    return searched, fixed
