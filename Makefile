# Front door of ipoib-rs. What the kernel's build system compiles is in Kbuild; `make help` lists
# the targets.

KDIR   ?= /lib/modules/$(shell uname -r)/build
KERNEL ?= stock
SUITE  ?=

.DEFAULT_GOAL := all

.PHONY: all modules modules_install vibfab clean help setup module demo test check bench lint clippy panics guest-tests

help: ## list the targets
	@sed -n 's/^\([a-z_-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18
	@echo
	@echo 'Variables: KDIR=kernel build folder (for the plain build), KERNEL=stock (for demo, test,'
	@echo 'module), SUITE=name (run one guest suite only), JOBS=guests at a time, BENCH=arguments of scripts/bench, IPOIB_CACHE, IPOIB_MIRROR (see README.md)'

all: modules ## build ipoib_rs.ko for the running kernel, or for KDIR=

# Distributions differ in whether their header package carries what Rust modules need.
modules: | need-kdir
	$(MAKE) -C $(KDIR) M=$(CURDIR) modules

modules_install: | need-kdir ## install ipoib_rs.ko for the running kernel, or for KDIR=
	$(MAKE) -C $(KDIR) M=$(CURDIR) modules_install
	@# Without a System.map in KDIR, as distributions have it, the kernel's makefile leaves this out.
	depmod $(if $(INSTALL_MOD_PATH),-b $(INSTALL_MOD_PATH)) $$(cat $(KDIR)/include/config/kernel.release)

# The virtual InfiniBand fabric of the tests is C: headers for modules are enough.
vibfab: ## build the test fabric, build/vibfab/vibfab.ko, for the same kernel (see tests/vibfab)
	@test -e $(KDIR)/Makefile || { echo "$(KDIR) is no kernel build folder" >&2; exit 1; }
	@mkdir -p build/vibfab
	$(MAKE) -C $(KDIR) M=$(CURDIR)/tests/vibfab MO=$(CURDIR)/build/vibfab modules

.PHONY: need-kdir
need-kdir:
	@test -e $(KDIR)/rust/libkernel.rmeta || { \
		echo "$(KDIR) has no Rust metadata (rust/libkernel.rmeta), so no Rust module can be built for" \
		"that kernel here: 'scripts/make-root' prepares a kernel tree that has it and 'make module'" \
		"builds there." >&2; exit 1; }

clean: ## remove everything that was built in this folder
	rm -rf build bindings/generated.rs
	find . -path ./.git -prune -o -path ./tests/host/target -prune -o -type f \( -name '*.o' -o -name '*.ko' \
		-o -name '*.mod' -o -name '*.mod.c' -o -name '*.cmd' -o -name '.*.d' -o -name 'modules.order' \
		-o -name 'Module.symvers' -o -name '*.rmeta' \) -print0 | xargs -0r rm -f

setup: ## make the build root and the prepared kernel tree (once; cached)
	@scripts/make-root --kernel $(KERNEL)

module: ## build build/$(KERNEL)/ipoib_rs.ko and the test fabric in the build root
	@scripts/build-module --kernel $(KERNEL)
	@scripts/build-module --kernel $(KERNEL) --src tests/vibfab

demo: ## boot a guest, load the module, ping and iperf3 over it
	@scripts/demo

test: ## lint, host tests and the routine guest suites; SUITE=name runs one guest suite
	@scripts/test $(SUITE)

check: ## run what needs no guest: lint, host tests, the scripts' tests, the build
	@scripts/test --no-guests

bench: ## measure side by side with ib_ipoib; tables and a plot in build/bench
	@scripts/bench $(BENCH)

lint: ## formatting, style, architecture checks and clippy; warnings are errors
	@scripts/lint

clippy: ## clippy on the module alone
	@scripts/build-module --kernel $(KERNEL) --clippy

panics: module ## check that the built module cannot reach a panic
	@scripts/check-panics build/$(KERNEL)/ipoib_rs.ko

# Not there in a copy that has the sources alone.
-include scripts/debug.mk
