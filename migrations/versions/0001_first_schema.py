"""Plans, tenants, API keys, usage and the directory's revision."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LIMITS = ("rpm", "tpm", "uncached_tpm", "concurrency", "max_queued", "max_prompt", "max_output")
MOMENT = sa.DateTime(timezone=True)


def _limits() -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=True) for name in LIMITS]


def upgrade() -> None:
    plans = op.create_table(
        "plans",
        sa.Column("name", sa.String(63), nullable=False),
        *_limits(),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_plans")),
        sa.CheckConstraint(
            "concurrency IS NOT NULL AND max_queued IS NOT NULL"
            " AND max_prompt IS NOT NULL AND max_output IS NOT NULL",
            name=op.f("ck_plans_bounded"),
        ),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("slug", sa.String(63), nullable=False),
        sa.Column("weight_milli", sa.Integer(), nullable=False),
        sa.Column("plan", sa.String(63), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        *_limits(),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("slug", name=op.f("uq_tenants_slug")),
        sa.ForeignKeyConstraint(["plan"], ["plans.name"], name=op.f("fk_tenants_plan_plans")),
        sa.CheckConstraint("weight_milli > 0", name=op.f("ck_tenants_weight_positive")),
        sa.CheckConstraint(
            "status IN ('active', 'suspended')", name=op.f("ck_tenants_status_known")
        ),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(10), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("pepper_version", sa.Integer(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=True),
        sa.Column("revoked_at", MOMENT, nullable=True),
        *_limits(),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_api_keys_tenant_id_tenants")
        ),
    )
    op.create_index(op.f("ix_api_keys_tenant_id"), "api_keys", ["tenant_id"])
    op.create_table(
        "usage",
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.String(10), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("route", sa.String(64), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("queue_s", sa.Double(), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", "attempt", name=op.f("pk_usage")),
    )
    op.create_index(op.f("ix_usage_tenant_id_created_at"), "usage", ["tenant_id", "created_at"])
    revisions = op.create_table(
        "directory_revision",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_directory_revision")),
        sa.CheckConstraint("id = 1", name=op.f("ck_directory_revision_single_row")),
    )
    op.bulk_insert(
        plans,
        [
            {
                "name": "default",
                "rpm": 600,
                "tpm": 200_000,
                "uncached_tpm": None,
                "concurrency": 4,
                "max_queued": 64,
                "max_prompt": 2_048,
                "max_output": 512,
            }
        ],
    )
    op.bulk_insert(revisions, [{"id": 1, "value": 0}])


def downgrade() -> None:
    for table in ("directory_revision", "usage", "api_keys", "tenants", "plans"):
        op.drop_table(table)
