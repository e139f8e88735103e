"""Prints the table of the networks and their numbers of parameters: python -m classgrad.models."""

from classgrad.models import MODELS
from classgrad.models._checks import VARIANTS

_CLASSES = (2, 10, 100)


def main() -> None:
    """Print the table of docs/models.md."""
    print("| model | variant |" + "".join(f" {number} classes |" for number in _CLASSES))
    print("|---|---|" + "---:|" * len(_CLASSES))
    for name, model in MODELS.items():
        for variant in VARIANTS:
            sizes = [sum(p.numel() for p in model(n, variant=variant).parameters()) for n in _CLASSES]
            print(f"| {name} | {variant} |" + "".join(f" {size:,} |" for size in sizes))


if __name__ == "__main__":
    main()
