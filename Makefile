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
setup: ## Install and start what is missing on this machine: a C compiler, Docker, busybox, mmdebstrap
	@scripts/setup.sh

.PHONY: demo
demo: image-base build ## Show the main job on a real engine, from nothing to a clean end
	@scripts/demo.sh

.PHONY: build
build: ## Build agbox, agboxd and agbox-init into bin/
	CGO_ENABLED=0 go build -ldflags "$(STAMP)" -o bin/ ./cmd/agbox ./cmd/agboxd
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $(STAMP)" -o bin/ ./cmd/agbox-init

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

.PHONY: bench-exec
bench-exec: images build ## Compare an exec round trip with docker exec on the same sandbox, in one run
	@go run ./e2e/bench exec

.PHONY: image-base
image-base: setup ## Make the local image agbox/base without any registry
	@scripts/images.sh base

.PHONY: images
images: setup ## Make all local images, those of the tests included
	@scripts/images.sh all

.PHONY: generate
generate: ## Generate the Go code of the .proto files
	$(TOOL) buf generate
	$(TOOL) buf generate --template buf.gen.guest.yaml

.PHONY: lint
lint: ## Check format and style of the Go code and the scripts
	@files=$$(gofmt -l $(GO_SOURCES)); if [[ -n $$files ]]; then printf 'not gofmt-ed:\n%s\n' "$$files"; exit 1; fi
	go vet ./...
	$(LINT) run ./...
	@if command -v shellcheck >/dev/null; then shellcheck -x $(SHELL_SOURCES); else echo 'lint: no shellcheck here, the scripts went unchecked'; fi

.PHONY: clean
clean: ## Remove what make built; the images and Docker stay
	rm -rf bin .build
