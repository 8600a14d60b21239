# A thin front: each target is one or two commands of tools/ or cmake, which can as well be run by hand.
#   MODEL=path    another GGUF than the demo model       PREFIX=/usr/local, DESTDIR=   where install writes
#   BUILD=build   where the release build lives          FUZZ_SECONDS=60   time for each fuzz program
BUILD ?= build
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
MACOS_ARCH ?= arm64
SANITIZED = unit prop fault
# Tests that start no thread, or those of the others once more and spend their time on bytes.
NO_NEW_THREADS = $(addprefix prop/test_,append_crash durable_copies durable_crash durable_cut durable_end \
    durable_fork_crash large_files recent repair repair_crash save suffix) $(addprefix unit/test_,bpe spm)
export MODEL

.DEFAULT_GOAL := all
.PHONY: all help setup demo test check asan tsan fuzz macos arm64 lint fmt bench install clean

all: ## build build/sluice, build/libsluice.a and build/libsluice.so
	@tools/setup.sh --check build
	@tools/build.sh $(BUILD) "sluice sluice_core sluice_shared"

help: ## this list
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: ## install what building, testing and the demo need (apt; root or sudo)
	@tools/setup.sh build test model

demo: ## install what is missing, build, fetch the demo model, have a text read once, answer QUESTION (again and again)
	@tools/demo.sh

test: ## install what is missing, build, run every test
	@tools/setup.sh build test model
	@tools/build.sh $(BUILD) all
	@tools/run_tests.sh $(BUILD)

check: ## every kernel against the reference, and the reference against stored bits
	@tools/setup.sh --check build test
	@tools/build.sh $(BUILD) all
	@tools/run_tests.sh $(BUILD) check golden/test_bits

asan: ## unit, prop and fault tests under the address and undefined sanitizers
	@tools/setup.sh --check build test
	@tools/build.sh build_asan "$(SANITIZED:%=tests_%)" -DCMAKE_BUILD_TYPE=Debug -DSLUICE_SANITIZE=address,undefined
	@SLUICE_TEST_TIMEOUT=900 tools/run_tests.sh build_asan $(SANITIZED)

tsan: ## unit, prop and fault tests under the thread sanitizer
	@tools/setup.sh --check build test
	@tools/build.sh build_tsan "$(SANITIZED:%=tests_%)" -DCMAKE_BUILD_TYPE=Debug -DSLUICE_SANITIZE=thread
	@SLUICE_TEST_TIMEOUT=900 tools/run_tests.sh build_tsan $(SANITIZED) $(NO_NEW_THREADS:%=-%)

fuzz: ## libFuzzer on every parser, side by side, FUZZ_SECONDS each
	@tools/setup.sh build test fuzz
	@tools/fuzz.sh $(FUZZ_SECONDS)

macos: ## cross-build everything for macOS on arm64 (MACOS_ARCH=x86_64 too) and examine it; it cannot run here
	@tools/setup.sh build macos
	@tools/macos.sh build_cross $(MACOS_ARCH)

arm64: ## cross-build the checks of kernels for Linux on arm64, run them under qemu, compare logits with x86-64
	@tools/setup.sh build macos
	@tools/build.sh $(BUILD) sluice
	@tools/arm64.sh build_cross $(BUILD)/sluice

lint: ## include graph, headers, forbidden calls, stray instructions
	@tools/setup.sh --check build test
	@tools/build.sh $(BUILD) sluice_core
	@tools/run_tests.sh $(BUILD) lint

fmt: ## clang-format over all C files
	@tools/setup.sh fmt
	@git ls-files '*.c' '*.h' | xargs clang-format -i

bench: ## measure this machine: kernels, flash, bursts, prefills (SIZE=full: hours)
	@tools/setup.sh --check build
	@tools/bench.sh $(BUILD) $(SIZE)

install: all ## copy program, library, headers and pkg-config file to PREFIX
	@cmake --install $(BUILD) --prefix "$(PREFIX)"

clean: ## remove the build folders
	@rm -rf build build_asan build_tsan build_fuzz build_cross
