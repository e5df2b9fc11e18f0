"""Health of a guest's kernel log: the lines that make a run count as dirty."""

import re

# Reports of the kernel's own checkers, and what the RDMA core and the network core print about
# objects that were not given back.
BAD = re.compile(
    r"\bBUG:|\bBUG at\b|\bWARNING:|\bOops\b|\bpanic\b|general protection|Unable to handle"
    r"|Call Trace:|KASAN|KFENCE|KCSAN|UBSAN|kmemleak: \d+ new|unreferenced object"
    r"|possible (circular|recursive) locking|possible irq lock inversion|inconsistent lock"
    r"|suspicious RCU|[Ii]nvalid wait context|sleeping function called|scheduling while atomic"
    r"|DEBUG_LOCKS_WARN|bad unlock balance|lock held when returning|held lock freed"
    r"|hung task|blocked for more than|soft lockup|hard LOCKUP|rcu.*(stall|detected)"
    r"|refcount_t|ref_tracker|unregister_netdevice: waiting|list_(add|del) corruption"
    r"|Poison overwritten|Redzone overwritten|Object already free|ODEBUG"
    r"|page allocation failure|NETDEV WATCHDOG|nobody cared|stack-protector"
    r"|[Rr]estrack|(?<![a-z])leak|memory is lost|guest health:"
)

# Lines of a sound boot that the pattern above takes for trouble.
GOOD = re.compile(
    r"kfence: initialized|KFENCE: .*enabled|[Cc]ommand line: |RCU CPU stall warnings timeout"
    r"|kmemleak: (Kernel memory leak detector|Automatic)"
    r"|rcu: .*(Hierarchical|callback|Adjusting)|Rude variant|guest: |KASAN.*initialized"
    r"|ODEBUG: selftest passed|panic_on|Lock dependency validator"
)


def dirty_lines(text, allow=()):
    """Lines of a kernel log that must not be there; allow = regular expressions a script expects."""
    allowed = [re.compile(a) for a in allow]
    found = []
    for line in text.splitlines():
        if not BAD.search(line) or GOOD.search(line):
            continue
        if any(a.search(line) for a in allowed):
            continue
        found.append(line.rstrip())
    return found
