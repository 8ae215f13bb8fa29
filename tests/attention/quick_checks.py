"""A backend put to the quick part of the contract suite by a test of its own."""

from rtk.plugin.testing import NotApplicable, suite


def passed(backend):
    """Names of the checks that apply to it; raises what the first that fails raises."""
    names = []
    for check in suite("attention"):
        if not check.quick:
            continue
        try:
            check(lambda: backend)
        except NotApplicable:
            continue
        names.append(check.name)
    return names
