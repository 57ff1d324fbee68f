# Everything that a person or CI runs. `make` alone prints what there is.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
ARGS ?=
TOOL := $(GO) tool -modfile=tools/go.mod

# The program is pure Go: no C compiler is asked for, and one build cache serves
# every target. Only the race detector needs cgo.
export CGO_ENABLED := 0

# The packages that the race detector is worth its price for: those with
# goroutines of their own, and without SQLite or gVisor below them, whose race
# builds take minutes each. `make race RACE=./internal/engine` runs another.
RACE ?= ./internal/link/... ./internal/keeper/... ./internal/hub/... ./internal/checkpoint/... ./internal/harness/...

FUZZTIME ?= 10s
BENCHTIME ?= 1s
KILLS ?= 200
AGENTS ?= all
DRIVERS ?= namespace gvisor

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/sojourn; the first time takes minutes, because gVisor is compiled in
	@echo "compiling gVisor and all: about 4 minutes on 2 cores the first time, seconds after that"
	@$(GO) build -v -ldflags '-s -w' -o bin/sojourn ./cmd/sojourn 2>&1 \
		| tools/progress "$$($(GO) list -deps ./cmd/sojourn | wc -l)"
	@ls -lh bin/sojourn | awk '{ print $$NF ": " $$5 }'

.PHONY: demo
demo: build ## watch a session survive the loss of its sandbox and of its server
	@bin/sojourn demo $(ARGS)

.PHONY: check
check: lint test ## everything that CI runs

# One package at a time: suites start servers and sandboxes of their own, and two of
# them on two cores would test each other's patience.
.PHONY: test
test: ## all tests: units, suites, policies, contract scripts, end to end
	@echo "tests: the first build compiles gVisor and SQLite, about 6 minutes on 2 cores"
	@$(GO) build ./... && $(GO) test -p 1 -v -timeout 20m ./... 2>&1 | awk -f tools/tests.awk

# Measured cold on 2 busy cores, in processor time: building 4.6 minutes, vet 1.5,
# staticcheck 2.4, which reads all of gVisor for its facts. That is little enough
# to leave nothing out.
.PHONY: lint
lint: ## go vet, gofumpt, staticcheck
	@echo "gofumpt"
	@out=$$($(TOOL) gofumpt -l .); if [ -n "$$out" ]; then echo "$$out"; echo "not formatted: run make fmt"; exit 1; fi
	@echo "go vet"
	@$(GO) vet ./...
	@echo "staticcheck"
	@$(TOOL) staticcheck ./...

.PHONY: fmt
fmt: ## format the code
	@$(TOOL) gofumpt -w .

.PHONY: race
race: ## the race detector, where it finds something at a fair price (RACE=packages)
	CGO_ENABLED=1 $(GO) test -race -timeout 20m $(RACE)

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (10s)
	@grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r pkg; do \
		grep -rhoE '^func Fuzz[A-Za-z0-9_]+' "$$pkg"/*_test.go | sed 's/^func //' | sort -u | while read -r target; do \
			echo "$$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$pkg"; \
		done; \
	done

.PHONY: bench
bench: ## the benchmarks, each beside its limit (BENCHTIME=1s)
	@$(GO) list -f '{{.Dir}}' ./... | while read -r dir; do \
		grep -qs '^func Benchmark' "$$dir"/*_test.go || continue; \
		$(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) "$$dir"; \
	done

.PHONY: bench-sandbox
bench-sandbox: build ## every sandbox driver beside runsc, bwrap and docker, in one table; minutes
	SOJOURN_BENCH_SANDBOX=$(CURDIR)/bin/sojourn $(GO) test -count=1 -timeout 10m -run '^$$' -bench '^BenchmarkSandboxes$$' -benchtime 1x -v ./cmd/sojourn

.PHONY: bench-exec
bench-exec: build ## execs, output and files of one warm sandbox over HTTP, each beside its limit (DRIVERS="namespace gvisor docker")
	SOJOURN_BENCH_EXEC=$(CURDIR)/bin/sojourn SOJOURN_BENCH_DRIVERS="$(DRIVERS)" $(GO) test -count=1 -timeout 20m -run '^$$' -bench '^BenchmarkExecs$$' -benchtime 1x -v ./cmd/sojourn

.PHONY: bench-agents
bench-agents: ## agents in a sandbox, ours and a real one, beside themselves under a bare client
	@SOJOURN_TEST_CODEX=1 $(GO) test -run '^$$' -bench 'Benchmark(Agent|Harness)$$' -benchtime 5x -timeout 20m -v ./cmd/sojourn

.PHONY: chaos
chaos: ## kill server, keeper, agent and sandbox KILLS (200) times and check the guarantees
	SOJOURN_KILLS=$(KILLS) $(GO) test -v -count=1 -timeout 60m -run 'Chaos|CrashAtEvery' ./cmd/sojourn ./internal/engine 2>&1 | awk -f tools/tests.awk

.PHONY: agents
agents: ## drive the real agents from npm against a mock model and compare what it receives (AGENTS=all)
	SOJOURN_TEST_AGENTS=$(AGENTS) $(GO) test -v -count=1 -timeout 30m -run ConversationIsExact ./internal/runtimes 2>&1 | awk -f tools/tests.awk

.PHONY: golden
golden: ## rewrite the golden files: the diff is the review
	@grep -rl --include='*_test.go' 'flag.Bool("update"' . | xargs -n1 dirname | sort -u | while read -r pkg; do \
		echo "$$pkg"; $(GO) test "$$pkg" -update >/dev/null; \
	done
	@git status --short

.PHONY: docs
docs: ## check the documents: links, the map, the tests that guarantees name
	$(GO) test -count=1 -run 'Documents|Architecture|Guarantee|DecisionRecords|Makefile' ./internal/archtest

.PHONY: clean
clean: ## remove what make made here
	rm -rf bin
