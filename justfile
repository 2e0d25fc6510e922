# The verbs of this repository. `just` alone lists them.
# They expect the environment that CONTRIBUTING.md sets up.

python := "python"

_list:
    @{{ just_executable() }} --list

# format, style, types, layers, requirements map
check:
    ruff format --check .
    ruff check .
    mypy
    pyright
    lint-imports --no-cache
    {{ python }} scripts/requirements_map.py --check
    {{ python }} scripts/api_reference.py --check
    {{ python }} scripts/diagrams.py --check
    {{ python }} scripts/charts.py --check
    {{ python }} scripts/typescript_types.py --check
    zizmor --offline --no-progress --quiet --persona pedantic .github/workflows
    if command -v actionlint; then actionlint; fi

# the tests, or some of them: just test tests/unit -k router
test *arguments:
    {{ python }} -m pytest -m "not slow" {{ arguments }}

# the tests of what was changed since main, or of some folders: just quick src/milecastle/codec
quick *folders:
    {{ python }} -m scripts.quick {{ folders }}

# what CI runs, and its samples in full: every Python found, newest PostgreSQL, lowest versions, Ray, benchmarks
test-all:
    bash .ci/run full

# measure against the peers: just bench steps
bench *arguments="steps":
    {{ python }} -m benchmarks {{ arguments }} --json

# write what is generated from code and tests
docs:
    {{ python }} scripts/requirements_map.py
    {{ python }} scripts/api_reference.py
    {{ python }} scripts/diagrams.py
    {{ python }} scripts/charts.py
    {{ python }} scripts/typescript_types.py

# the documentation site, into build/site/public (needs constraints/site.txt)
site:
    {{ python }} -m scripts.site

# every page of the site that was built, in a browser, wide and narrow (needs chromium)
look-at-site:
    MILECASTLE_SITE_PAGES=all {{ python }} -m pytest tests/browser/test_site.py

# pictures of the web view for the docs, or of every page into a folder, to look at (needs chromium)
screenshots *folder:
    {{ python }} -m scripts.screenshots {{ folder }}

# the pictures of the README: a recording of `milecastle demo`, and a drawn graph; --check compares them
recording *arguments:
    {{ python }} -m scripts.recording {{ arguments }}

# build and check what is published, into dist/; publishes nothing (needs `pip install --no-deps --require-hashes -r constraints/release.txt`)
release:
    {{ python }} -m scripts.release dist --full

# put everything into form
fmt:
    ruff check --fix .
    ruff format .

# the long forms: loss, slow tests, then every benchmark at full size
proof: proof-loss proof-fleet proof-server proof-shards proof-model proof-messages proof-flows proof-memory proof-agents proof-archive
    {{ python }} -m pytest -m slow
    {{ python }} -m benchmarks steps --json
    {{ python }} -m benchmarks import --json
    {{ python }} -m benchmarks stores --json
    {{ python }} -m benchmarks cpu --json
    {{ python }} -m benchmarks growth --json
    {{ python }} -m benchmarks archive --json
    {{ python }} -m benchmarks incremental --json
    {{ python }} -m benchmarks fanout --json
    {{ python }} -m benchmarks compute --json
    {{ python }} -m benchmarks held --json
    {{ python }} -m benchmarks messages --json
    {{ python }} -m benchmarks flows --json
    {{ python }} -m benchmarks edits --json
    {{ python }} -m benchmarks agents --json
    {{ python }} -m benchmarks server --json
    {{ python }} -m benchmarks telemetry --json
    {{ python }} -m benchmarks saver --json

# nothing acknowledged is ever lost, at the sizes of docs/evidence/stores-loss.md; cuts need root
proof-loss:
    MILECASTLE_CUTS=2000 {{ long }} tests/process/test_power_cut.py
    MILECASTLE_EVERY=1 {{ long }} tests/recovery/test_disturbed_runs.py
    MILECASTLE_EXHAUSTIVE=1 {{ long }} tests/recovery/test_jsonl_damage.py tests/recovery/test_sqlite_truncation.py
    MILECASTLE_FLIPS=0 {{ long }} tests/recovery/test_sqlite_damage.py
    MILECASTLE_KILLS=20000 {{ long }} tests/process/test_kills.py -k jsonl
    MILECASTLE_KILLS=5000 {{ long }} tests/process/test_kills.py -k sqlite
    MILECASTLE_KILLS=2000 {{ long }} tests/process/test_kills.py -k postgres
    MILECASTLE_SAVER_KILLS=200 {{ long }} tests/process/test_langgraph_kills.py
    MILECASTLE_KILLS=2000 {{ long }} tests/process/test_postgres_outcomes.py -k ended_backends
    MILECASTLE_BACKEND_KILLS=2000 {{ long }} tests/process/test_postgres_crashes.py
    MILECASTLE_RACES=10000 {{ long }} tests/process/test_linearizability.py
    MILECASTLE_FAILOVERS=20 {{ long }} tests/process/test_postgres_failover.py
    MILECASTLE_OPERATIONS=100000 {{ long }} tests/process/test_tenants.py tests/process/test_postgres_tenants.py
    MILECASTLE_NAMES=10000 {{ long }} tests/process/test_hostile_names.py
    MILECASTLE_STEPS=1000000 {{ long }} tests/stateful -k agrees_with_the_model

# workers are killed, stopped, drained and cut off while they run thousands of runs; with --resume without the seeds that are done
proof-fleet *resume:
    MILECASTLE_RESUME={{ resume }} MILECASTLE_FLEET_SEEDS=200000 {{ long }} tests/recovery/test_simulated_fleets.py -k long_form
    MILECASTLE_FLEET_ROUNDS=200 MILECASTLE_FLEET_RUNS=2000 {{ long }} tests/process/test_fleet_chaos.py tests/process/test_fleet_pgbouncer.py
    MILECASTLE_DEPLOYS=50 MILECASTLE_DELAY=2 {{ long }} tests/process/test_fleet_deploys.py
    MILECASTLE_FIRINGS=1000 MILECASTLE_PERIOD=50 {{ long }} tests/process/test_schedules.py
    {{ long }} tests/process/test_key_kills.py -m slow

# readers of events reconnect while servers are killed; slow clients; requests made from the OpenAPI document
proof-server:
    MILECASTLE_READERS=1000 {{ long }} tests/process/test_server_streams.py
    MILECASTLE_SLOW_CLIENTS=10000 {{ long }} tests/acceptance/server/test_attacks.py
    MILECASTLE_FUZZ=1000 {{ long }} tests/acceptance/server/test_fuzzing.py
    MILECASTLE_CLIENT_KILLS=100 {{ long }} tests/process/test_client_kills.py -m slow

# shards move 1,000 times under load; movers, workers and databases are killed
proof-shards:
    MILECASTLE_MOVES=1000 {{ long }} tests/process/test_sharded_chaos.py

# workers are killed while messages come, answers race their deadlines, callers die in their transactions
proof-messages:
    MILECASTLE_MESSAGE_KILLS=200 {{ long }} tests/process/test_message_kills.py -m slow
    MILECASTLE_ANSWER_RACES=1000 {{ long }} tests/process/test_answer_races.py -m slow
    MILECASTLE_CALLER_KILLS=200 {{ long }} tests/process/test_caller_kills.py -m slow
    {{ long }} tests/process/test_child_kills.py tests/process/test_sharded_messages.py -m slow

# random flows crash at every effect, code is edited while they wait, workers are killed
proof-flows:
    {{ long }} tests/recovery/test_random_flows.py tests/process/test_flow_kills.py tests/acceptance/test_replay.py -m slow

# runs are killed while they write long-term memory and take from buckets, on SQLite and PostgreSQL
proof-memory:
    {{ long }} tests/process/test_memory_kills.py -m slow
    {{ long }} tests/process/test_bucket_kills.py -m slow

# random scripts of models are crashed everywhere, agents are killed in their tools, servers in every state of their tasks, histories are read by providers' rules
proof-agents:
    MILECASTLE_AGENT_SCRIPTS=1000 {{ long }} tests/recovery/test_crash_everywhere_with_agents.py -m slow
    MILECASTLE_AGENT_HISTORIES=10000 {{ long }} tests/unit/agents/test_histories.py -m slow
    MILECASTLE_AGENT_KILLS=200 {{ long }} tests/process/test_tool_kills.py -m slow
    MILECASTLE_MCP_ROUNDS=20 {{ long }} tests/process/test_mcp_kills.py -m slow

# random histories of public calls and faults, judged by the model of the public interface; with --resume without those that are done
proof-model *resume:
    MILECASTLE_RESUME={{ resume }} MILECASTLE_MODEL_HISTORIES=20000 MILECASTLE_MODEL_PROCESSES=200 {{ long }} tests/model -m slow

# writers and sweeps of large values are killed 1,000 times
proof-objects:
    MILECASTLE_OBJECT_KILLS=1000 {{ long }} tests/process/test_object_kills.py

# archivers, restorers, pruners, erasers and sweeps are killed 1,000 times, beside writers
proof-archive:
    MILECASTLE_ARCHIVE_KILLS=1000 {{ long }} tests/process/test_archive_kills.py -m "slow or not slow"

# mutation testing of engine, codec and stores, 1,200 mutants (docs/evidence/mutation.md): half an hour of processor time
proof-mutants *arguments:
    {{ python }} -m scripts.mutation {{ arguments }}

long := python + " -m pytest -n 0 -s"

# pin the tools anew, for every supported Python (needs `pip install --require-hashes -r constraints/uv.txt`)
lock:
    {{ python }} -m uv pip compile {{ lock-options }} {{ lowest-extras }} {{ agent-extras }} pyproject.toml constraints/tools.in -o constraints/tools.txt
    {{ python }} -m uv pip compile {{ lock-options }} {{ lowest-extras }} {{ agent-extras }} pyproject.toml constraints/tests.in -o constraints/tests.txt
    {{ python }} -m uv pip compile {{ lock-options }} pyproject.toml constraints/free-threaded.in -o constraints/free-threaded.txt
    {{ python }} -m uv pip compile {{ lock-options }} constraints/ray.in -o constraints/ray.txt
    {{ python }} -m uv pip compile {{ lock-options }} constraints/release.in -o constraints/release.txt
    {{ python }} -m uv pip compile {{ lock-options }} constraints/uv.in -o constraints/uv.txt
    {{ python }} -m uv pip compile {{ lock-options }} constraints/bench.in -o constraints/bench.txt
    {{ python }} -m uv pip compile {{ lock-options }} constraints/site.in -o constraints/site.txt
    {{ python }} -m uv pip compile {{ lock-options }} --resolution lowest-direct {{ lowest-extras }} pyproject.toml constraints/lowest.in -o constraints/lowest.txt

# not Ray, which is too large, and not the agent libraries: they need newer versions of what other extras need
lowest-extras := "--extra client --extra encryption --extra fleet --extra langgraph --extra numpy --extra objects --extra oidc --extra otel --extra postgres --extra pydantic --extra rich --extra serve"

agent-extras := "--extra anthropic --extra mcp --extra openai --extra openai-agents --extra pydantic-ai"

lock-options := "--quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --fork-strategy fewest"
