"""The pictures of the structure: which packages they show, and where a box stands."""

from __future__ import annotations

from dataclasses import dataclass

BOXES = "scripts/structure/pictures.py"
"""This file, as messages name it."""
CLIENT = "rowcast_client"
"""A distribution of its own in client/, which no import contract mentions."""


@dataclass(frozen=True)
class Box:
    """A package, or several that are drawn as one.

    Attributes:
      names: Packages or modules within the package of the picture, with spaces between.
      row: Number of the row, from the top.
      columns: First column, and the column after the last one.
      parts: Packages within the only one of `names`, with spaces between. They are drawn inside.
    """

    names: str
    row: int
    columns: tuple[int, int]
    parts: str = ""


@dataclass(frozen=True)
class DataArrow:
    """What one program passes to another without an import. It is drawn as a dashed arrow."""

    source: str
    target: str
    label: str


@dataclass(frozen=True)
class Picture:
    """One image.

    Attributes:
      file: Its name in docs/assets.
      title: What it shows.
      boxes: All packages that the layers of an import contract name.
      package: The package whose inside is drawn; empty for the whole project.
      data_arrows: What is passed without an import.
      mark: What a colored edge means; empty if there is none.
      marked: Packages with a colored edge.
      marked_imports: Modules that mark the packages that import them.
    """

    file: str
    title: str
    boxes: tuple[Box, ...]
    package: str = ""
    data_arrows: tuple[DataArrow, ...] = ()
    mark: str = ""
    marked: tuple[str, ...] = ()
    marked_imports: tuple[str, ...] = ()


WHOLE = Picture(
    "structure.svg",
    "The packages of rowcast",
    (
        Box(CLIENT, 0, (7, 12)),
        Box("export", 1, (0, 5)),
        Box("service", 1, (7, 12)),
        Box("rows", 2, (4, 8)),
        Box("command_line runtime object_store tensors", 3, (0, 12)),
        Box("bundle", 4, (0, 12), parts="changes stores features tables storage format native"),
    ),
    data_arrows=(
        DataArrow(CLIENT, "service", "HTTP, gRPC"),
        DataArrow("export", "service", "bundles"),
    ),
)

SERVICE = Picture(
    "structure-service.svg",
    "Inside service/",
    (
        Box("ray_serve cli app", 0, (0, 12)),
        Box("serving_records", 1, (3, 6)),
        Box("shards", 2, (0, 3)),
        Box("protocols", 2, (3, 9), parts="tensorflow_serving open_inference"),
        Box("admin", 2, (9, 12)),
        Box("grpc_api", 3, (0, 6)),
        Box("http", 3, (6, 11)),
        Box("dataplane change_plane", 4, (0, 10)),
        Box("request_log", 5, (0, 4)),
        Box("descriptions", 5, (4, 8)),
        Box("codec", 6, (0, 8)),
        Box("changes", 7, (3, 10)),
        Box("engine", 8, (0, 10), parts="scheduling retrieval ranking"),
        Box("workers", 9, (10, 12)),
        Box("versions", 10, (0, 6)),
        Box("security", 10, (6, 12)),
        Box("coordinator connections observability", 11, (4, 12)),
        Box("contract", 12, (0, 8)),
        Box(
            "resources bounded_pool config errors exit_codes http_client loopback openapi",
            13,
            (0, 12),
        ),
    ),
    package="service",
    mark="on the path of a call",
    marked=("http", "grpc_api", "dataplane", "codec", "engine", "contract"),
)

EXPORT = Picture(
    "structure-export.svg",
    "Inside export/",
    (
        Box("cli drafts explain jobs", 0, (0, 12)),
        Box("saved_model", 1, (3, 12)),
        Box("verify", 2, (1, 12)),
        Box("towers", 3, (0, 3)),
        Box("front_end_choice", 3, (3, 9)),
        Box("corpora", 3, (9, 12)),
        Box("tensorflow_models", 4, (2, 6)),
        Box("jax_models", 4, (6, 8)),
        Box("given_towers", 4, (8, 10)),
        Box("partition", 5, (3, 10), parts="features lookups ids graph"),
        Box("id_graphs model_code", 6, (2, 8)),
        Box("graphs", 7, (0, 4)),
        Box("front_end", 8, (0, 6)),
        Box("tables", 8, (7, 10)),
        Box("checkpoint", 9, (4, 11), parts="inventory formats"),
        Box("recipe", 10, (0, 12)),
        Box("errors report_text locations raised_errors row_errors steps user_lines", 11, (0, 12)),
    ),
    package="export",
    mark="uses TensorFlow",
    marked=("graphs",),
    marked_imports=("export.graphs", "tensorflow"),
)

PICTURES = (WHOLE, SERVICE, EXPORT)


class Undrawable(Exception):
    """The code has a package or an import for which a picture has no space."""
