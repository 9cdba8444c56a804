"""Set up the roles of an archive on PostgreSQL, as an administrator of its server.

    python -m store grant --archive URL --writer NAME [--reader NAME]

Creates the archive's tables, or migrates them to the newest revision. A role without login then owns them, the writer
may insert and read, and the reader may read. A role that does not exist is created, without login. The command is
idempotent, and has to be repeated after every new revision.
"""

from __future__ import annotations

import re
from typing import Iterator, Sequence

from sqlalchemy import Connection, text

from store.database import VERSION_TABLE, Database
from store.errors import ArchiveError
from store.models import APPEND_ONLY, Base, Cell

OWNER = "twofold_owner"

_ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")


def grant_rights(url: str, *, writer: str, reader: str | None = None, owner: str = OWNER) -> None:
    """Make `owner` the owner of the archive at `url`, and grant `writer` and `reader` their rights.

    Raises ArchiveError, changing nothing, if this user lacks the rights, or if a role could still change evidence.
    """
    roles = [owner, writer, *([reader] if reader is not None else [])]
    for role in roles:
        if _ROLE.fullmatch(role) is None or roles.count(role) > 1:
            raise ArchiveError(f"{role!r} is no name for a role of its own: up to 63 letters, digits, _ . and -")
    database = Database(url, create=True)
    try:
        if database.is_sqlite:
            raise ArchiveError(f"{database.name} has no roles: whoever may write the file may add to the archive")
        with database.write_transaction() as connection:
            schema = str(connection.scalar(text("SELECT current_schema()")))
            for statement in _grant_statements(schema, writer, reader, owner):
                connection.exec_driver_sql(statement)
            _refuse_other_rights(connection, schema, owner, [role for role in roles if role != owner])
    finally:
        database.close()


def _grant_statements(schema: str, writer: str, reader: str | None, owner: str) -> Iterator[str]:
    others = [writer, *([reader] if reader is not None else [])]
    for role in (owner, *others):
        yield _conditional_statement(
            f"EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}')", f"CREATE ROLE {_quote_identifier(role)} NOLOGIN"
        )
    # Without this, the user could neither transfer the tables nor alter them at the next revision.
    yield _conditional_statement(
        f"pg_has_role('{owner}', 'USAGE')", f"GRANT {_quote_identifier(owner)} TO CURRENT_USER"
    )
    here, everybody = _quote_identifier(schema), ", ".join(map(_quote_identifier, others))
    yield f"REVOKE CREATE ON SCHEMA {here} FROM PUBLIC, {everybody}"
    yield f"GRANT USAGE, CREATE ON SCHEMA {here} TO {_quote_identifier(owner)}"
    yield f"GRANT USAGE ON SCHEMA {here} TO {everybody}"
    for table in (*Base.metadata.tables, VERSION_TABLE):
        yield f"ALTER TABLE {here}.{_quote_identifier(table)} OWNER TO {_quote_identifier(owner)}"
        yield f"REVOKE ALL ON {here}.{_quote_identifier(table)} FROM PUBLIC, {everybody}"
        yield f"GRANT SELECT ON {here}.{_quote_identifier(table)} TO {everybody}"
    for table in (*APPEND_ONLY, Cell.__tablename__):
        yield f"GRANT INSERT ON {here}.{_quote_identifier(table)} TO {_quote_identifier(writer)}"
    yield f"REVOKE ALL ON SEQUENCE {here}.notes_id_seq FROM PUBLIC, {everybody}"
    yield f"GRANT USAGE ON SEQUENCE {here}.notes_id_seq TO {_quote_identifier(writer)}"
    yield f"ALTER FUNCTION {here}.refuse_change() OWNER TO {_quote_identifier(owner)}"


def _refuse_other_rights(connection: Connection, schema: str, owner: str, others: Sequence[str]) -> None:
    """Raise ArchiveError if a role has rights from elsewhere that make these grants ineffective."""
    if connection.scalar(text("SELECT rolcanlogin OR rolsuper FROM pg_roles WHERE rolname = :owner"), {"owner": owner}):
        raise ArchiveError(f"{owner} can log in, so it can take the guards away: name another as --owner")
    ways = {
        "is a superuser or may make roles": "SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = :role",
        f"is a member of {owner}": "SELECT pg_has_role(:role, :owner, 'MEMBER')",
        "owns the database": "SELECT pg_has_role(:role, datdba, 'MEMBER') FROM pg_database "
        "WHERE datname = current_database()",
        "may make tables beside it": "SELECT has_schema_privilege(:role, :schema, 'CREATE')",
        "may change rows by another grant": "SELECT bool_or(has_table_privilege(:role, oid, "
        "'UPDATE, DELETE, TRUNCATE, TRIGGER')) FROM pg_class WHERE relkind = 'r' "
        "AND relnamespace = current_schema()::regnamespace",
    }
    for role in others:
        for way, question in ways.items():
            if connection.scalar(text(question), {"role": role, "owner": owner, "schema": schema}):
                raise ArchiveError(f"{role} {way}, so grants do not hold it: name another role, or take that away")


def _conditional_statement(condition: str, statement: str) -> str:
    return f"DO $do$ BEGIN IF NOT {condition} THEN {statement}; END IF; END $do$"


def _quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
