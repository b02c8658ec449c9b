# qlogd. `make run` builds and serves; `make test` is all that CI needs.

VERSION ?= 0.1.0
COMMIT ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
DATE   ?= $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)
LDFLAGS = -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)
TOOL    = go tool -modfile=$(CURDIR)/tools/go.mod

# Build, lint and tests share what they compile, also with those in other clones.
export GOFLAGS := $(shell go env GOFLAGS) -trimpath

FUZZTIME     ?= 10m
BENCH        ?= .
BENCHTIME    ?= 1s
POWER_CUTS   ?= 30
SIM_SEEDS    ?= 2000
CAMPAIGN     ?= night

.PHONY: help
help: ## show what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

.PHONY: build
build: ## bin/qlogd, with commit and date in it, without debug symbols
	go build -trimpath -ldflags '-s -w $(LDFLAGS)' -o bin/qlogd ./cmd/qlogd

.PHONY: build-race
build-race:
	go build -race -o bin/qlogd.race ./cmd/qlogd

.PHONY: symbols
symbols: build ## bin/qlogd.debug: the same program with its debug symbols, for debuggers
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/qlogd.debug ./cmd/qlogd

.PHONY: man
man: ## bin/man/*.1.gz: a page of each command
	rm -rf bin/man && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || date +%s) \
	  go run -tags man -ldflags '$(LDFLAGS)' ./cmd/qlogd man bin/man && gzip -9n bin/man/*.1

.PHONY: completions
completions: ## bin/completions: for bash, zsh and fish
	mkdir -p bin/completions
	go run ./cmd/qlogd completion bash >bin/completions/qlogd.bash
	go run ./cmd/qlogd completion zsh >bin/completions/_qlogd
	go run ./cmd/qlogd completion fish >bin/completions/qlogd.fish

.PHONY: run
run: build ## build and serve: one durable node in ./qlogd-data, on http://127.0.0.1:7070
	./bin/qlogd serve

.PHONY: cluster
cluster: ## build and run three nodes on this machine, until ctrl-C; prints how to reach them
	@./scripts/cluster

.PHONY: install
install: ## qlogd into GOBIN
	go install -trimpath -ldflags '-s -w $(LDFLAGS)' ./cmd/qlogd

# The race detector has nothing to find where tests run the program, or where internal/arch admits no
# goroutine, and takes five times as long. Campaigns run the program with it.
UNRACED = ./internal/simtest/cluster/... ./cmd/qlogd ./console ./deploy ./examples/worker ./fsm ./event ./projections \
  ./internal/arch ./internal/simtest/planted
GOTEST  = go test -vet=off -ldflags '-s -w' -timeout 15m -p 3 -parallel 4

.PHONY: test
test: export QLOGD_BIN = $(CURDIR)/bin/qlogd
test: export QLOGD_RACE_BIN = $(CURDIR)/bin/qlogd.race
test: export GORACE = atexit_sleep_ms=0
test: ## what CI runs: lint, and tests, with the race detector where it can find something, and a sample of walks and campaigns
	$(MAKE) -j3 -Oline lint build build-race
	$(GOTEST) $(UNRACED) ./internal/simtest/sim # the longest first; they wait as much as they work
	$(GOTEST) -race -short ./server ./raft ./api $(filter-out $(shell go list $(UNRACED)), $(shell go list ./...)) # of walks a sample
	$(MAKE) -j3 -Oline typescript-sample $(MODULES:%=test/%) console-sample # the longest first

# Modules of their own. The outbox needs PostgreSQL, the console chromium, TypeScript node and npm's packages;
# where these are not installed, their tests say so.
MODULES = examples/outbox bench client/qlogdotel webhook/oracle
.PHONY: $(MODULES:%=test/%)
# The race detector where it does not build the product once more.
test/bench: RACED = ./load ./limits ./system
$(MODULES:%=test/%): test/%:
	cd $* && $(GOTEST) ./...
	$(if $(RACED),cd $* && $(GOTEST) -race $(RACED))

.PHONY: console-test
console-test: build bin/axe.min.js ## the console in Debian's chromium: pages, actions, roles, keyboard, phone, proxy, cluster, axe-core
	cd console/chromium && CONSOLE_TEST=1 QLOGD_BIN=$(CURDIR)/bin/qlogd go test -count=1 -timeout 20m .

.PHONY: console-sample
console-sample: build
	cd console/chromium && go vet . && QLOGD_BIN=$(CURDIR)/bin/qlogd go test -count=1 -short -timeout 5m -run '^(TestSignIn|TestKeyboard)$$' .

NODE_MODULES = clients/typescript/node_modules/.package-lock.json
$(NODE_MODULES): clients/typescript/package-lock.json
	cd clients/typescript && npm ci --silent --fetch-retries=1 --fetch-timeout=30000

.PHONY: typescript
typescript: $(NODE_MODULES) ## clients/typescript: its types from api/openapi.yaml, and dist/
	cd clients/typescript && npm run --silent generate && npm run --silent build

.PHONY: typescript-test
typescript-test: build $(NODE_MODULES) ## the OpenAPI document (redocly lint) and the TypeScript client: types, tsc, node's tests with the real program
	cd clients/typescript && QLOGD_BIN=$(CURDIR)/bin/qlogd npm test --silent

.PHONY: typescript-sample
typescript-sample:
	@if ! node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null; then \
	  echo "no tests of the TypeScript client: node 20 or later is not installed"; \
	elif ! $(MAKE) $(NODE_MODULES); then echo "no tests of the TypeScript client: npm lacks the packages"; \
	else $(MAKE) typescript-test; fi

.PHONY: screenshots
screenshots: build ## docs/images/*.png: a picture of each page of the console
	cd console/chromium && CONSOLE_TEST=1 SCREENSHOTS=$(CURDIR)/docs/images QLOGD_BIN=$(CURDIR)/bin/qlogd \
	  go test -count=1 -timeout 10m -run '^TestScreenshots$$' .

AXE = axe-core-4.14.1
bin/axe.min.js:
	mkdir -p bin && cd bin && npm pack --silent $(subst core-,core@,$(AXE)) && tar xzf $(AXE).tgz --strip-components 1 package/axe.min.js && rm $(AXE).tgz

HELM        = helm.sh/helm/v3/cmd/helm@v3.22.0
KUBECONFORM = github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
GORELEASER  = github.com/goreleaser/goreleaser/v2@v2.15.1
CYCLONEDX   = github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

bin/helm:
	GOBIN=$(CURDIR)/bin go install $(HELM)
bin/kubeconform:
	GOBIN=$(CURDIR)/bin go install $(KUBECONFORM)
bin/goreleaser:
	GOBIN=$(CURDIR)/bin go install $(GORELEASER)
bin/cyclonedx-gomod:
	GOBIN=$(CURDIR)/bin go install $(CYCLONEDX)

.PHONY: manifests
manifests: bin/helm ## deploy/kubernetes/qlogd.yaml, from the Helm chart
	go test -count=1 ./deploy -run '^TestRendered$$' -update

.PHONY: release-check
release-check: bin/goreleaser bin/cyclonedx-gomod ## what a release of this commit would be, in dist/: archives, checksums, SBOMs and packages
	bin/goreleaser check
	PATH=$(CURDIR)/bin:$$PATH GORELEASER_CURRENT_TAG=v$(VERSION) bin/goreleaser release --snapshot --clean

.PHONY: deploy-check
deploy-check: bin/helm bin/kubeconform ## deploy/ with helm, kubeconform and the tools that are installed; packages if they are in dist/
	go test -count=1 -v ./deploy

STATICCHECK = $$(GOFLAGS= $(TOOL) -n staticcheck)

.PHONY: lint
lint: export GOFLAGS += -race # which the tests compile with
lint: ## gofmt, vet, staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
	  if [ -n "$$unformatted" ]; then echo "gofmt these:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	$(STATICCHECK) ./...
	cd bench && go vet ./... && $(STATICCHECK) ./...
	cd client/qlogdotel && go vet ./... && $(STATICCHECK) ./...
	cd examples/outbox && go vet ./... && $(STATICCHECK) ./...
	cd webhook/oracle && GOFLAGS=-trimpath go vet .

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (10m) each
	./scripts/fuzz $(FUZZTIME)

.PHONY: bench
bench: build ## all Go benchmarks (BENCH=regexp, BENCHTIME=1s), then what each work costs the real program (WORKS="produce3 poll1")
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem -timeout 2h ./...
	cd bench && go run . profile $(BENCHFLAGS) $(or $(WORKS),$(foreach n,1 3,produce$(n) cycle$(n) enqueue$(n) singles$(n) http$(n) latency$(n) poll$(n)))

.PHONY: compare
compare: build ## qlogd beside other queue servers, in turns: all, or WORKS=produce3,http3 SYSTEMS=qlogd-3,nats-r3-always (COMPAREFLAGS="-rounds 3")
	cd bench && go run . compare $(if $(WORKS),-works '$(WORKS)') $(if $(SYSTEMS),-systems '$(SYSTEMS)') $(COMPAREFLAGS)

.PHONY: peers
peers: ## install what bench/ compares with, from Debian's packages, and try each one's driver out
	bench/install-peers
	cd bench && PEERS=1 go test -count=1 -v -timeout 30m -run '^(TestPeers|TestLimits)$$' ./peers ./limits

# make test runs a sample of each campaign: two kills, one power cut, few clients with little to do.
crash chaos powercut: export CRASH_LOAD = full

.PHONY: crash
crash: ## kill -9 the real server 200 times under load (CRASH_KILLS=n)
	CRASH_KILLS=$(or $(CRASH_KILLS),200) \
	  go test -count=1 -v -timeout 4h -run '^TestCrash$$' ./internal/simtest/cluster/crashtest

.PHONY: chaos
chaos: ## kill leaders, kill all, wipe, pause and cut off nodes of a real cluster under load (CHAOS_LEADER_KILLS=100 CHAOS_ALL_KILLS=20 …)
	CHAOS_LEADER_KILLS=$(or $(CHAOS_LEADER_KILLS),100) CHAOS_ALL_KILLS=$(or $(CHAOS_ALL_KILLS),20) \
	  CHAOS_WIPES=$(or $(CHAOS_WIPES),10) CHAOS_PAUSES=$(or $(CHAOS_PAUSES),20) CHAOS_CUTS=$(or $(CHAOS_CUTS),20) \
	  CHAOS_STOPS=$(or $(CHAOS_STOPS),10) CHAOS_TRANSFERS=$(or $(CHAOS_TRANSFERS),10) \
	  go test -count=1 -v -timeout 4h -run '^TestChaos$$' ./internal/simtest/cluster/crashtest

.PHONY: failover
failover: ## how long writes are away after 100 deaths of the leader, and while it stops in good order 20 times
	FAILOVER_TIMED=1 FAILOVER_KILLS=$(or $(FAILOVER_KILLS),100) FAILOVER_STOPS=$(or $(FAILOVER_STOPS),20) \
	  go test -count=1 -v -timeout 2h -run '^TestFailover$$' ./internal/simtest/cluster

.PHONY: story
story: ## 10,000 messages, every 7th killed, replayed by a task in their order; again with the leader killed meanwhile (STORY_MESSAGES=n)
	STORY_MESSAGES=$(or $(STORY_MESSAGES),10000) go test -count=1 -v -timeout 1h -run '^TestDeadLetterStory$$' ./internal/simtest/cluster

.PHONY: story-undo
story-undo: ## 10,000 messages acked without being done come back in order, each once, the leader killed meanwhile (UNDO_MESSAGES=n)
	UNDO_MESSAGES=$(or $(UNDO_MESSAGES),10000) go test -count=1 -v -timeout 1h -run '^TestUndo$$' ./internal/simtest/cluster

.PHONY: catchup
catchup: ## a follower that missed 1,000,000 messages comes back while 5,000 a second are offered
	CATCHUP_TIMED=1 CATCHUP_MESSAGES=$(or $(CATCHUP_MESSAGES),1000000) CATCHUP_RATE=$(or $(CATCHUP_RATE),5000) \
	  go test -count=1 -v -timeout 2h -run '^TestCatchUp$$' ./internal/simtest/cluster

.PHONY: erasure
erasure: ## erase by id and by key on three nodes and one, nodes killed, wiped, away and new meanwhile; then search every file (ERASE_KILLS=n)
	ERASE_KILLS=$(or $(ERASE_KILLS),20) go test -count=1 -v -timeout 1h -run '^TestErase' ./internal/simtest/cluster

.PHONY: webhooks
webhooks: ## 10,000 signed webhooks through three nodes, a worker and the leader killed in the middle (WEBHOOKS=n)
	WEBHOOKS=$(or $(WEBHOOKS),10000) go test -count=1 -v -timeout 30m -run '^TestWebhooks$$' ./internal/simtest/cluster

.PHONY: outbox-test
outbox-test: build ## kill -9 the relays of examples/outbox, PostgreSQL and qlogd under load: each committed row arrives once (OUTBOX_KILLS=50)
	cd examples/outbox && OUTBOX_KILLS=$(or $(OUTBOX_KILLS),50) QLOGD_BIN=$(CURDIR)/bin/qlogd go test -count=1 -v -timeout 1h .

.PHONY: powercut
powercut: ## cut the power under the real server, on ext4 in a loop device (needs root; POWER_CUTS=30)
	POWER_CUTS=$(POWER_CUTS) go test -count=1 -v -timeout 4h -run '^TestPowerCut$$' ./internal/simtest/cluster/crashtest

.PHONY: sim
sim: ## thousands of clusters in simulated time, each with partitions, crashes, restarts (SIM_SEEDS=2000, SIM_SEED=first); then the parts of one
	SIM_KEEP=$(CURDIR)/bin/sim SIM_SEEDS=$(SIM_SEEDS) go test -count=1 -v -timeout 8h -run '^TestSeeds$$' ./internal/simtest/sim
	go test -count=1 -v -timeout 1h -run '^(TestCluster|TestStorm|TestNeverTwice)$$' ./raft ./raft/peer

.PHONY: crashwalk
crashwalk: ## let the power fail in every single write and sync of a whole node, of its event log, of Raft's stores and of an erasure, with every kind of loss (QLOGD_CRASH= a sample)
	QLOGD_CRASH=$(if $(filter undefined,$(origin QLOGD_CRASH)),full,$(QLOGD_CRASH)) go test -count=1 -v -timeout 4h \
	  -run '^(Test.*CrashAnywhere|TestFailAnywhere|Test(Crash|Error)AtEveryOperation|TestErasesAMessageWhole)$$' ./log ./raft ./raft/fetch ./server ./background/erasure

.PHONY: model
model: ## let random commands and replicas run beside a naive model, read models beside the fold, and a what-if beside the past (MODEL_RUNS=n)
	go test -count=1 -v -timeout 4h -run '^(TestModel|TestReplicas|TestFold)$$' ./fsm ./projections/store -args -rapid.checks=$(or $(MODEL_RUNS),2000)
	go test -count=1 -v -timeout 1h -run '^TestNothingIsOtherwiseUnderTheSamePolicy$$' ./replay

.PHONY: flips
flips: ## flip bits of a stopped node's files, cut them, and start it again (FLIPS=3000); then every byte of an event log, a transfer's, lost sectors, attacks, salvages
	FLIPS=$(or $(FLIPS),3000) go test -count=1 -v -timeout 4h -run '^TestFlips$$' ./internal/simtest/cluster
	QLOGD_CRASH=full go test -count=1 -v -timeout 4h ./log ./raft/fetch ./replay \
	  -run '^(TestEveryFlippedByte|TestFlippedByte|TestFlippedList|TestCutShort|TestAttacks|TestDamaged.*|TestCheck|Test.*SectorLost|TestSalvage.*)$$'

.PHONY: planted
planted: ## plant mistakes in the product, one at a time, and run the campaign that must find each (PLANTED=regexp)
	PLANTED='$(or $(PLANTED),.)' go test -count=1 -v -timeout 4h -run '^TestPlanted$$' ./internal/simtest/planted

.PHONY: campaign
campaign: ## all of these, one after the other, in a night, or in 20 minutes (CAMPAIGN=quick); the report is bin/campaign.md
	./scripts/campaign $(CAMPAIGN)

.PHONY: clean
clean: ## what build and tests leave
	rm -rf bin
