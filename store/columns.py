"""Column types that the tables share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, String
from sqlalchemy.orm import MappedColumn, mapped_column

CONVENTION = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}
"""Names of constraints, so that a migration can refer to them by name on every database."""


def digest_column(name: str, comment: str, *more: Any, **options: Any) -> MappedColumn[Any]:
    """Return a column for a SHA-256 in hexadecimal; the database refuses any other length."""
    check = CheckConstraint(f"length({name}) = 64", name=f"{name}_is_a_sha256")
    return mapped_column(name, String(64), check, *more, comment=comment, **options)


def moment_column(name: str, comment: str, **options: Any) -> MappedColumn[Any]:
    """Return a column for a time as text in UTC, RFC 3339.

    SQLite has no time type with a zone, and text sorts the same on every database.
    """
    return mapped_column(name, String(40), comment=f"{comment} UTC, RFC 3339.", **options)
