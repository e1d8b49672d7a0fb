# 'make' without a target prints the list of targets. Longer recipes are in scripts/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION := $(shell git describe --tags --match 'v[0-9]*' --always --dirty 2>/dev/null || echo dev)
STAMP   := -X github.com/agbox/agbox/internal/version.Version=$(VERSION)

# The tools have their own module files, so their dependencies never become dependencies of agbox.
TOOL := go tool -modfile=tools/go.mod
LINT := go tool -modfile=tools/lint/go.mod golangci-lint

GO_SOURCES    = $(shell git ls-files --cached --others --exclude-standard '*.go')
SHELL_SOURCES = $(wildcard scripts/*.sh scripts/lib/*.sh) .ci/run

# Two packages at a time: the end-to-end tests wait most of the time, and the other lane compiles and runs unit tests
# meanwhile. 'make lint' vets, so the tests need not. -w leaves out what only debuggers read, which shortens linking.
# With -trimpath, a clone finds in the cache what another one has compiled.
GOTEST := $(TOOL) gotestsum --format pkgname --format-hide-empty-pkg -- \
	-race -count=1 -vet=off -trimpath -ldflags=-w -p=2 -parallel=$(shell echo $$((2 * $$(nproc)))) -timeout=20m
# By default the race detector sleeps for a second at the end of every process. It reports races before that.
export GORACE ?= atexit_sleep_ms=0

# In the order in which they start: ./e2e with the unit tests beside it, then the other packages that start containers.
UNIT_PACKAGES   = $(shell go list ./... | grep -v -e '/e2e' -e '/runtime/docker')
ENGINE_PACKAGES = ./runtime/docker/... $(shell go list ./e2e/... | grep -v '/e2e$$')

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install and start what is missing: a C compiler, Docker, busybox, mmdebstrap, strace, tmux, zsh, fish, Node.js
	@scripts/setup.sh

.PHONY: demo
demo: image-base build ## Show the main features on a real engine: create, exec, a daemon crash, removal
	@scripts/demo.sh

.PHONY: demo-agent
demo-agent: image-base build ## Show a supervised agent: its program, the daemon and its container are killed, and it loses nothing
	@scripts/demo-agent.sh

.PHONY: build
build: ## Build agbox, agboxd and agbox-init into bin/
	@# Without the traces of gRPC, which nothing shows, agbox starts sooner.
	CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags "$(STAMP)" -o bin/ ./cmd/agbox ./cmd/agboxd
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $(STAMP)" -o bin/ ./cmd/agbox-init

.PHONY: install
install: ## Install what 'make build' built below PREFIX (default /usr/local); DESTDIR goes before it
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh

.PHONY: uninstall
uninstall: ## Remove what 'make install' installed; sandboxes and their data stay
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh uninstall

.PHONY: package
package: build ## Make a Debian package of the binaries, units, manual pages and completions in dist/
	@DIST='$(DIST)' scripts/package.sh

.PHONY: check
check: build ## Build, lint and unit-test what differs from upstream, without the race detector; takes seconds
	@scripts/check.sh

.PHONY: test
test: ## Run all tests with the race detector, including the end-to-end tests on a real engine
	@$(MAKE) --no-print-directory -j2 images build
	@$(GOTEST) ./e2e $(UNIT_PACKAGES) $(ENGINE_PACKAGES)

.PHONY: test-unit
test-unit: ## Run the tests that need no engine
	@$(GOTEST) $(UNIT_PACKAGES)

.PHONY: test-e2e
test-e2e: images build ## Run the tests that need an engine
	@$(GOTEST) ./e2e $(ENGINE_PACKAGES)

.PHONY: test-faults
test-faults: images build ## Inject every fault of e2e/FAULTS.md and print a table of the results; needs root
	@[[ $$(id -u) == 0 ]] || { echo "These tests trace processes and mount file systems: run 'sudo make test-faults'."; exit 1; }
	@# Run in its own directory: only then does go test also show the table if all tests pass.
	@cd e2e/faults && AGBOX_SWEEP=all go test -race -count=1 -parallel=4 -timeout=20m

.PHONY: test-agent-kills
test-agent-kills: images build ## Kill the daemon, supervisors and robots at every boundary of what agents do; takes 10 minutes and needs root
	@cd e2e/faults && AGBOX_SWEEP=all go test -race -count=1 -v -timeout=30m \
		-run 'BoundariesOf(TheLifeOfAnAgent|AKillOfAnAgent|ADrainOfAnAgent|APause|ADenial|Holds|AnAdoption|ACascade|AChildsOwnSandbox)|AnAgentDiesAtEachReport|AnAgentGoesOnWhenItsSupervisorDies'

.PHONY: test-review
test-review: images build ## Kill agbox apply, and the daemon that keeps bases, at every change of a file; needs root
	@cd e2e/faults && AGBOX_SWEEP=all go test -race -count=1 -v -timeout=30m -run 'BoundariesOf(AnApply|ABranch|AnAdvance|StoringABase)'

.PHONY: test-attacks
test-attacks: images build ## Make every attack of e2e/ATTACKS.md, on three engines and users, and print the results; needs root
	@[[ $$(id -u) == 0 ]] || { echo "These tests act as several users: run 'sudo make test-attacks'."; exit 1; }
	@# Run in its own directory: only then does go test also show the table if all tests pass.
	@cd e2e/attacks && go test -race -count=1 -vet=off -ldflags=-w -parallel=4 -timeout=30m -elsewhere -everywhere

.PHONY: test-presets
test-presets: images build ## Have the four agents of npm repair a project with hostile settings in the images of the presets; loads about 1.5 GB
	@scripts/images.sh presets
	@cd e2e && go test -tags presets -count=1 -v -vet=off -timeout=40m -run 'RealAgents' | grep -v level=

.PHONY: test-examples
test-examples: images build ## Create all public compose files and devcontainers that work, with local images
	@cd e2e && AGBOX_EXAMPLES=all go test -count=1 -v -vet=off -timeout=30m -run PublicExamples | grep -v level=

.PHONY: soak
soak: images build ## Kill the daemon under load for SOAK (default 10m), at random times from SEED (default 7)
	@cd e2e/faults && AGBOX_SOAK=$(or $(SOAK),10m) AGBOX_SEED=$(or $(SEED),7) go test -race -count=1 -timeout=0 -run 'KillsUnderLoad'

.PHONY: soak-pool
soak-pool: images build ## Have 16 clients take CREATES (default 1000) sandboxes beside a pool of 5, whose daemon and sandboxes are killed, from SEED (default 26); needs root
	@cd e2e/faults && AGBOX_POOL_CREATES=$(or $(CREATES),1000) AGBOX_SEED=$(or $(SEED),26) go test -race -count=1 -v -timeout=0 -run 'ManyTakeFromAPool'

.PHONY: chaos-agents
chaos-agents: images build ## Kill and fill what 116 agents need, while others read, for CHAOS (default 10m), from SEED (default 14); as root it fills disks too
	@cd e2e/agents && AGBOX_CHAOS=$(or $(CHAOS),10m) AGBOX_SEED=$(or $(SEED),14) go test -race -count=1 -v -timeout=0 -run 'TreeOfAHundred'

.PHONY: schedule-agents
schedule-agents: images build ## Have 20 agents ask for six resources in any order for SCHEDULE (default 5m); all must be able to finish
	@cd e2e/agents && AGBOX_SCHEDULE=$(or $(SCHEDULE),5m) go test -race -count=1 -v -timeout=0 -run 'RandomSchedule'

.PHONY: figures
figures: image-base build ## Print the size and structure of the code, and how many files an exec, a message and an apply pass through
	@scripts/figures.sh

.PHONY: fuzz
fuzz: ## Run each fuzz test for FUZZ_TIME (default 30s); FUZZ=REGEXP selects some. 'make test' runs only their seeds
	@scripts/fuzz.sh

.PHONY: bench
bench: images build ## Measure what people wait for beside Docker, and write BENCHMARKS.md; takes about 15 minutes on a quiet machine
	@go run ./e2e/bench all

.PHONY: bench-agents
bench-agents: images build ## Measure agents: from spawn to work, reports, crashes, memory, 1,000 that wait, 10,000 that have ended
	@go run ./e2e/bench agents
	@go run ./e2e/bench many

.PHONY: agent-figures
agent-figures: images build ## Measure the times that agents are promised, at their real length; takes about 20 minutes
	@go run ./e2e/bench figures

.PHONY: bench-copy
bench-copy: images build ## Compare copying 256 MiB and 10,000 files with docker cp on the same sandbox
	@go run ./e2e/bench copy

.PHONY: bench-base
bench-base: images build ## Compare the creation of a sandbox with 10,000 files with and without the base that agbox diff needs
	@go run ./e2e/bench base

.PHONY: bench-exec
bench-exec: images build ## Compare the latency of an exec with docker exec on the same sandbox
	@go run ./e2e/bench exec

.PHONY: bench-logs
bench-logs: images build ## Compare following a log with docker logs and docker exec; measure the memory of idle followers
	@go run ./e2e/bench logs

.PHONY: bench-reads
bench-reads: images build ## Measure reads of living and deleted sandboxes, beside 100 deleted ones
	@go run ./e2e/bench reads

.PHONY: bench-recovery
bench-recovery: images build ## Kill the daemon with 200 busy sandboxes; measure the time until all are served again
	@go run ./e2e/bench recovery

.PHONY: bench-services
bench-services: images build ## Create, list, inspect and remove 100 sandboxes with two services each
	@go run ./e2e/bench services

.PHONY: bench-upgrade
bench-upgrade: images build ## Upgrade the daemon ten times under 64 callers and 20 log streams; print the delays
	go test -count=1 -timeout 5m -run TestUpgradesUnderLoadGoUnnoticed -v ./e2e | grep -v level=

.PHONY: image-base
image-base: setup ## Build the local image agbox/base without a registry
	@scripts/images.sh base

.PHONY: images
images: setup ## Build all local images, including those of the tests
	@scripts/images.sh all

.PHONY: generate
generate: ## Generate the Go code of the .proto files, docs/spec.md, docs/json.md and the JSON Schema of agbox.yaml
	$(TOOL) buf generate
	scripts/ownregistry.sh .
	$(TOOL) buf generate --template buf.gen.guest.yaml
	go run ./scripts/docgen
	go test ./cmd/agbox -count=1 -run TestJSONIsDocumented -update

.PHONY: lint
lint: ## Check format and style of Go code, scripts and .proto files, find dead code and arrows back up
	@files=$$(gofmt -l $(GO_SOURCES)); if [[ -n $$files ]]; then printf 'not gofmt-ed:\n%s\n' "$$files"; exit 1; fi
	@if command -v shellcheck >/dev/null; then shellcheck -x $(SHELL_SOURCES); else echo 'lint: shellcheck is not installed, so the scripts are not checked'; fi
	go mod tidy -diff
	go vet ./...
	$(LINT) run ./...
	$(TOOL) buf lint
	cd tools/lint && go vet ./... && go tool golangci-lint run ./... && go test -count=1 ./...
	@scripts/dead.sh
	@scripts/figures.sh arrows

.PHONY: drift
drift: ## Check that the generated Go code matches the .proto files
	@scripts/drift.sh

.PHONY: clean
clean: ## Remove what make built, except images and Docker
	rm -rf bin dist .build
