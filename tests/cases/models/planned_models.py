"""Models whose plans are recorded, and what the exporter is given to plan each."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from export.model_code.factories import load_factory
from export.recipe.schema import ExportJob
from tests.cases.models.checkpoints import Write, write_objects
from tests.units.export.traced_models import MODELS

Page = Mapping[str, Any]
"""Sections of a recipe."""


@dataclass(frozen=True)
class Project:
    """What the exporter is given: a recipe, and the folder that its paths are relative to."""

    job: ExportJob
    base: Path


@dataclass(frozen=True)
class PlannedModel:
    """A model, or a variant of one, whose plan is recorded.

    Attributes:
      name: The name of the plan and of its snapshot.
      source: The file in tests/models or the folder in examples that has the model.
      write: Writes what the exporter reads into an empty folder.
    """

    name: str
    source: str
    write: Callable[[Path], Project]


@dataclass(frozen=True)
class Variant:
    """How the recipe of a plan differs from that of its module.

    Attributes:
      factory: The function of the module; "": the one that the plan is named after.
      trained: The function that returns the model in the checkpoint; "": the factory.
      write: Writes the checkpoint.
      sections: Sections of the recipe, instead of the module's.
    """

    factory: str = ""
    trained: str = ""
    write: Write = write_objects
    sections: Page = field(default_factory=dict)


def variant(
    factory: str = "",
    *,
    trained: str = "",
    write: Write = write_objects,
    **sections: Any,
) -> Variant:
    """Returns a variant; sections of the recipe are keywords."""
    return Variant(factory, trained, write, sections)


@dataclass(frozen=True)
class Module:
    """A module of tests/models, each of whose factories has a plan: functions without arguments
    that are called `build` or `build_*`.

    Attributes:
      name: The name of the module.
      sections: Sections of the recipes.
      variants: The variants by plan: the factory's name without `build_`, or a name of its own.
      write: Writes the checkpoint of a factory that has no variant.
      others: Factories with other names.
    """

    name: str
    sections: Page
    variants: Mapping[str, Variant] = field(default_factory=dict)
    write: Write = write_objects
    others: tuple[str, ...] = ()

    def plans(self) -> Iterator[PlannedModel]:
        """Yields a model for each factory, and for each variant."""
        factories = {_plan_of(factory): factory for factory in self._factories()}
        for plan, factory in factories.items():
            yield self._planned(plan, factory, self._variant_of(factory))
        for plan, plan_variant in self.variants.items():
            if plan_variant.factory:
                yield self._planned(plan, plan_variant.factory, plan_variant)
            else:
                assert plan in factories, f"{self.name}.py has no factory of the plan {plan!r}"

    def _factories(self) -> Iterator[str]:
        members = vars(importlib.import_module(f"tests.models.{self.name}"))
        for name, member in members.items():
            named = name == "build" or name.startswith("build_")
            if name in self.others or (named and callable(member) and not _needed(member)):
                yield name

    def _variant_of(self, factory: str) -> Variant:
        return self.variants.get(_plan_of(factory), Variant(write=self.write))

    def _planned(self, plan: str, factory: str, plan_variant: Variant) -> PlannedModel:
        def write(folder: Path) -> Project:
            checkpoint = folder / "checkpoint"
            checkpoint.mkdir()
            if plan_variant.trained:
                saved = self._variant_of(plan_variant.trained)
                trained = self._job(plan_variant.trained, saved, folder)
            else:
                saved = plan_variant
                trained = self._job(factory, plan_variant, folder)
            saved.write(load_factory(trained.code.factory, MODELS), trained, checkpoint)
            return Project(self._job(factory, plan_variant, folder), MODELS)

        name = f"{self.name}.{plan}" if plan else self.name
        return PlannedModel(name, source_of(self.name), write)

    def _job(self, factory: str, plan_variant: Variant, folder: Path) -> ExportJob:
        sections = {
            "checkpoint": {"object_path": "model"},
            **self.sections,
            **plan_variant.sections,
        }
        page = {
            **sections,
            "model": self.name,
            "checkpoint": {**sections["checkpoint"], "path": str(folder / "checkpoint")},
            "code": {**sections.get("code", {}), "factory": f"{self.name}.py:{factory}"},
            "output": {"root": str(folder / "bundles")},
        }
        return ExportJob.model_validate(page)


def source_of(module: str) -> str:
    """Returns the file of a module in tests/models."""
    return f"tests/models/{module}.py"


def _plan_of(factory: str) -> str:
    return factory.removeprefix("build").removeprefix("_")


def _needed(factory: Callable[..., Any]) -> list[str]:
    """Returns the arguments that a function cannot be called without."""
    parameters = inspect.signature(factory).parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
