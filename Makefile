# 'make' alone prints what there is; the scripts/ folder holds what takes more than a line.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
STAMP   := -X github.com/agbox/agbox/internal/version.Version=$(VERSION)

# The tools have module files of their own: what they need never becomes what agbox needs.
TOOL := go tool -modfile=tools/go.mod
LINT := go tool -modfile=tools/lint/go.mod golangci-lint

GO_SOURCES    = $(shell git ls-files --cached --others --exclude-standard '*.go')
SHELL_SOURCES = $(wildcard scripts/*.sh scripts/lib/*.sh) .ci/run

# One package at a time: the tests that start containers would disturb each other's timing on a small machine.
GOTEST := $(TOOL) gotestsum --format pkgname --format-hide-empty-pkg -- -race -count=1 -p=1 -timeout=20m

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install and start what is missing on this machine: a C compiler, Docker, busybox, mmdebstrap, strace, Node.js
	@scripts/setup.sh

.PHONY: demo
demo: image-base build ## Show the main job on a real engine, from nothing to a clean end
	@scripts/demo.sh

.PHONY: build
build: ## Build agbox, agboxd and agbox-init into bin/
	CGO_ENABLED=0 go build -ldflags "$(STAMP)" -o bin/ ./cmd/agbox ./cmd/agboxd
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $(STAMP)" -o bin/ ./cmd/agbox-init

.PHONY: check
check: build ## Build, lint and unit-test what differs from upstream, without the race detector: seconds, for every edit
	@scripts/check.sh

.PHONY: test
test: images build ## Run every test, the end-to-end tests on a real engine included, with the race detector
	go build -race ./...
	$(GOTEST) ./...

.PHONY: test-unit
test-unit: ## Run the tests that need no engine
	$(GOTEST) $$(go list ./... | grep -v -e '/e2e' -e '/runtime/docker')

.PHONY: test-e2e
test-e2e: images build ## Run the tests that need an engine
	$(GOTEST) ./runtime/docker/... ./e2e/...

.PHONY: test-faults
test-faults: images build ## Make every fault of e2e/FAULTS.md and print the table of results; needs root
	@[[ $$(id -u) == 0 ]] || { echo "These tests trace processes and mount file systems: run 'sudo make test-faults'."; exit 1; }
	@# In its own folder, because go test then shows the table also when all is well.
	@cd e2e/faults && go test -race -count=1 -parallel=4 -timeout=20m

.PHONY: soak
soak: images build ## Kill the daemon under load for SOAK (default 10m) at the random moments of SEED (default 7)
	@cd e2e/faults && AGBOX_SOAK=$(or $(SOAK),10m) AGBOX_SEED=$(or $(SEED),7) go test -race -count=1 -timeout=0 -run 'KillsUnderLoad'

.PHONY: bench-exec
bench-exec: images build ## Compare an exec round trip with docker exec on the same sandbox, in one run
	@go run ./e2e/bench exec

.PHONY: bench-logs
bench-logs: images build ## Compare following a log with docker logs and docker exec, in one run, and weigh idle followers
	@go run ./e2e/bench logs

.PHONY: bench-recovery
bench-recovery: images build ## Kill the daemon over 200 sandboxes that run commands; time until all are served again
	@go run ./e2e/bench recovery

.PHONY: bench-services
bench-services: images build ## Make 100 sandboxes with two services each, list, inspect and remove them
	@go run ./e2e/bench services

.PHONY: bench-upgrade
bench-upgrade: images build ## Upgrade the daemon ten times under 64 callers and 20 log streams and print the waits
	go test -count=1 -timeout 5m -run TestUpgradesUnderLoadGoUnnoticed -v ./e2e | grep -v level=

.PHONY: image-base
image-base: setup ## Make the local image agbox/base without any registry
	@scripts/images.sh base

.PHONY: images
images: setup ## Make all local images, those of the tests included
	@scripts/images.sh all

.PHONY: generate
generate: ## Generate the Go code of the .proto files, docs/spec.md and the JSON Schema of agbox.yaml
	$(TOOL) buf generate
	$(TOOL) buf generate --template buf.gen.guest.yaml
	go run ./internal/docgen

.PHONY: lint
lint: ## Check format and style of Go code, scripts and .proto files, and look for dead code
	@files=$$(gofmt -l $(GO_SOURCES)); if [[ -n $$files ]]; then printf 'not gofmt-ed:\n%s\n' "$$files"; exit 1; fi
	@if command -v shellcheck >/dev/null; then shellcheck -x $(SHELL_SOURCES); else echo 'lint: no shellcheck here, the scripts went unchecked'; fi
	go mod tidy -diff
	go vet ./...
	$(LINT) run ./...
	$(TOOL) buf lint
	@scripts/dead.sh

.PHONY: drift
drift: ## Check that the generated Go code is what the .proto files make
	@scripts/drift.sh

.PHONY: clean
clean: ## Remove what make built; the images and Docker stay
	rm -rf bin .build
