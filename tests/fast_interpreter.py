"""Triton's interpreter without what makes nested functions slow in it. The tests import it, and ranks that they start.

A call of a device function prepares ``triton.language`` for its module; once per module and kernel is enough.
"""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton.runtime import interpreter

    _prepared: set[int] = set()
    _launch = interpreter.GridExecutor.__call__

    def _call_kernel(self, *args, **kwargs):
        _prepared.clear()
        return _launch(self, *args, **kwargs)

    def _call_function(self, *args, **kwargs):
        module = id(self.fn.__globals__)
        if module not in _prepared:
            interpreter._patch_lang(self.fn)
            _prepared.add(module)
        return self.rewrite()(*args, **kwargs)

    interpreter.GridExecutor.__call__ = _call_kernel
    interpreter.InterpretedFunction.__call__ = _call_function
