"""${message}

Say here what changes and why. Rules: define tables as they are at this revision and never import the models;
one step; do not touch `records`; on SQLite a batch migration loses the table's triggers, so make them again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
