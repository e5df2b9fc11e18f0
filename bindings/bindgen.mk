# SPDX-License-Identifier: GPL-2.0
#
# The rule for $(obj)/bindings/generated.rs, for Kbuild files; $(repository) is the folder above this one.

# rustc reads exported make variables through env!(); src/sys includes this file.
export IPOIB_BINDINGS := $(abspath $(obj))/bindings/generated.rs

bindgen-lists := $(repository)/bindings/parameters $(repository)/bindings/rdma.parameters

# Only the flags that change how a header is read: the rest of KBUILD_CFLAGS is
# for gcc and unknown to the clang inside bindgen.
bindgen-cflags = $(NOSTDINC_FLAGS) $(LINUXINCLUDE) $(KBUILD_CPPFLAGS) \
	-include $(srctree)/include/linux/compiler_types.h \
	$(filter -std=% -fshort-wchar -funsigned-char -fms-% -m64 -D% -I%,$(KBUILD_CFLAGS)) \
	-DMODULE -D__BINDGEN__ -fno-builtin -w --target=x86_64-linux-gnu \
	-DKBUILD_MODNAME='"ipoib_rs"' -I$(repository)/bindings

quiet_cmd_ipoib_bindgen = BINDGEN $@
      cmd_ipoib_bindgen = $(BINDGEN) $< \
		$(shell cat $(bindgen-lists) | grep -Ev '^\#|^$$') \
		-o $@ -- $(bindgen-cflags) -Wp,-MMD,$(depfile)

$(obj)/bindings/generated.rs: $(repository)/bindings/bindings.h $(bindgen-lists) FORCE
	$(call if_changed_dep,ipoib_bindgen)

targets     += bindings/generated.rs
clean-files += bindings/generated.rs
