# shellcheck shell=bash
# No fabric: nothing but the booted kernel.
fabric_up() { :; }
fabric_down() { :; }
