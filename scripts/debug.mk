# Targets of the kernels with checkers; included by the Makefile.

.PHONY: debug-setup debug-test debug-probe

# KERNEL=qemu-debug for the one with two processors
debug_kernel = $(if $(filter stock,$(KERNEL)),uml-debug,$(KERNEL))

debug-setup: ## build the sanitizer kernel (user-mode Linux; once; cached)
	@scripts/make-root --kernel $(debug_kernel)

debug-probe: ## prove that the sanitizer kernel reports planted faults
	@tests/debug-probe/check --kernel $(debug_kernel)

debug-test: ## run the guest suites on the sanitizer kernel; SUITE=name runs one
	@scripts/debug-test --kernel $(debug_kernel) $(SUITE)
