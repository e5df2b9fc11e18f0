# Targets of the kernels with checkers; included by the Makefile.

.PHONY: debug-setup debug-test debug-probe

debug-setup: ## build the sanitizer kernel (user-mode Linux; once; cached)
	@scripts/make-root --kernel uml-debug

debug-probe: ## prove that the sanitizer kernel reports planted faults
	@tests/debug-probe/check

debug-test: ## run the guest suites on the sanitizer kernel; SUITE=name runs one
	@scripts/debug-test $(SUITE)
