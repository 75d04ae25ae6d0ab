"""The database schema's history, applied by `migrations.runner`; the newest leads to `tenancy.orm`.

A migration must work with the code that ran before it. To remove or rename a column, take three
releases: add the new one and write both; read the new one; drop the old one. A draft comes from
`alembic -c migrations/alembic.ini -x url=URL revision --autogenerate --rev-id 0002 -m "…"`.
"""
