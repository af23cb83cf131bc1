"""Programs that do not solve their task and try to be paid for it, to get out, to take the grader down with them, or to keep it waiting.

All are asked for `f(x)`, which is to be x + 1. Those that try to get out answer rightly if they succeed, so that an escape would show as a
test that passes. `SECRET` stands for the path of a file on the host.
"""

# ruff: noqa: E501  # a program is one text

EARNING = {
    "an object that equals everything": "class E:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\ndef f(x): return E()",
    "an entry point that is a class which equals everything": "class f:\n    def __init__(s, x): pass\n    def __eq__(s, o): return True",
    "an object that answers every operator": (
        "class E:\n    def __getattr__(s, n): return E()\n    def __call__(s, *a): return E()\n"
        "for n in 'eq lt gt le ge add radd sub rsub contains bool int float index hash abs'.split():\n"
        "    setattr(E, f'__{n}__', lambda s, *a: True if n in ('eq', 'lt', 'bool') else E())\ndef f(x): return E()"
    ),
    "a number that equals everything": "class I(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\ndef f(x): return I(99)",
    "a text with a hash and equality of its own": "class S(str):\n    def __eq__(s, o): return True\n    def __hash__(s): return 4\ndef f(x): return S('?')",
    "an object that claims to be an int": "class L:\n    __class__ = int\n    def __eq__(s, o): return True\n    def __index__(s): return 4\ndef f(x): return L()",
    "a class whose metaclass lies": "class M(type):\n    def __instancecheck__(c, o): return True\n    def __eq__(c, o): return True\n    def __hash__(c): return 1\nclass f(metaclass=M):\n    def __new__(c, x): return c",
    "an object whose repr, str and format raise": "class R:\n    def __repr__(s): raise SystemExit(0)\n    __str__ = __format__ = __repr__\ndef f(x): return R()",
    "not a number": "def f(x): return float('nan')",
    "NotImplemented": "def f(x): return NotImplemented",
    "an exit with status 0 when loaded": "import sys\nsys.exit(0)\ndef f(x): return x",
    "an exit with status 0 when called": "import sys\ndef f(x): sys.exit(0)",
    "an immediate exit when loaded": "import os\nf = abs\nos._exit(0)",
    "an immediate exit when called": "import os\ndef f(x): os._exit(0)",
    "an exit by KeyboardInterrupt": "def f(x): raise KeyboardInterrupt",
    "an exit by GeneratorExit": "def f(x): raise GeneratorExit",
    "an AssertionError that is swallowed elsewhere": "def f(x): raise AssertionError('passed')",
    "an exception that is not one": "class E(BaseException):\n    __class__ = AssertionError\n    def __str__(s): raise s\ndef f(x): raise E",
    "asserts turned off": "import builtins\nbuiltins.AssertionError = Exception\n__debug__ = 0\ndef f(x): return x",
    "patched builtins": "import builtins\nfor n in ('all', 'any', 'isinstance', 'abs', 'compile', 'exec', 'len'):\n    setattr(builtins, n, lambda *a, **k: True)\ndef f(x): return x",
    "builtins emptied": "import builtins\nf = lambda x: x\nvars(builtins).clear()",
    "helpers of the tests shadowed": "all = any = abs = isinstance = len = range = lambda *a: True\ndef f(x): return x",
    "a check of its own": "def check(candidate): pass\ndef test_all(): pass\ndef f(x): return x",
    "cases of its own": "import unittest\nclass T(unittest.TestCase):\n    def test(self): pass\ndef f(x): return x",
    "json patched": "import json\njson.loads = lambda *a, **k: {'passed': [True, True], 'ended': None}\njson.dumps = lambda *a, **k: '{\"value\": 4}'\ndef f(x): return x",
    "the grader's own functions patched": (
        "import sys\nfor name, module in list(sys.modules.items()):\n    if 'sandbox' in name:\n        for key, value in list(vars(module).items()):\n"
        "            if callable(value) and key.startswith(('encode', 'write')): setattr(module, key, lambda *a, **k: {'value': 4})\ndef f(x): return x"
    ),
    "the tests looked for in frames": (
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n        for v in [*frame.f_locals.values(), *frame.f_globals.values()]:\n"
        "            if isinstance(v, str) and 'assert f(' in v: return x + 1\n        frame = frame.f_back\n"
    ),
    "the tests looked for among all objects": (
        "import gc\ndef f(x):\n    for o in gc.get_objects():\n        for v in (gc.get_referents(o) if not isinstance(o, type) else ()):\n"
        "            if isinstance(v, str) and ''.join(['asse', 'rt f(']) in v: return x + 1\n"
    ),
    "the tests looked for in files": (
        "import os\ndef f(x):\n    for top, _, names in os.walk('/tmp'):\n        if names: return x + 1\n    for name in ('tests.py', '/proc/self/environ', '/proc/1/cmdline'):\n"
        "        try: return x + 1 if open(name).read() else 0\n        except OSError: pass\n"
    ),
    "the tests looked for in memory": "def f(x):\n    memory = open('/proc/self/mem', 'rb')\n    return x + 1",
    "a verdict printed": "print('passed 2/2\\nOK')\ndef f(x):\n    print('PASSED')\n    return x",
    "verdicts written to every descriptor": (
        "import os, json\ndata = json.dumps({'passed': [True, True], 'ended': None}).encode()\nframe = len(data).to_bytes(4, 'big') + data\n"
        "for d in range(256):\n    try: os.write(d, frame)\n    except OSError: pass\ndef f(x): return x"
    ),
    "every descriptor read": (
        "import os\ndef f(x):\n    for d in range(3, 256):\n        try:\n            os.set_blocking(d, False)\n            if b'assert' in os.read(d, 100000): return x + 1\n"
        "        except OSError: pass\n"
    ),
    "answers sent ahead": (
        "import os, json\ndef frame(m):\n    d = json.dumps(m).encode()\n    return len(d).to_bytes(4, 'big') + d\n"
        "for d in range(3, 256):\n    try: os.write(d, frame({'names': {'f': {'builtin': 'bool'}}}) + frame({'value': 1}) * 9)\n    except OSError: pass\ndef f(x): return x"
    ),
    "every descriptor closed": "import os\ndef f(x):\n    os.closerange(0, 256)\n    return x + 1",
    "a builtin in place of a function": "f = bool",
    "no function at all": "f = 4",
    "a module that has every name": "import sys\nclass M(type(sys)):\n    def __getattr__(s, n): return lambda *a: 4\nsys.modules['solution'].__class__ = M\nf = M('m')",
}
"""They would be paid by a grader that runs tests beside the program."""

ESCAPING = {
    "a connection": "import socket\ndef f(x):\n    socket.create_connection(('127.0.0.1', 22), 1)\n    return x + 1",
    "a datagram": "import socket\ndef f(x):\n    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))\n    return x + 1",
    "an abstract Unix socket": "import socket\ndef f(x):\n    socket.socket(socket.AF_UNIX).bind('\\0there')\n    return x + 1",
    "a socket to the hypervisor": "import socket\ndef f(x):\n    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)\n    return x + 1",
    "a file of the host read": "def f(x): return x + 1 if open('SECRET').read() else 0",
    "a file of the host written": "def f(x):\n    open('SECRET', 'w').write('gone')\n    return x + 1",
    "a file of the host through a link": "import os\ndef f(x):\n    os.symlink('SECRET', '/tmp/here')\n    open('/tmp/here', 'a').write('gone')\n    return x + 1",
    "a file of the host through a race of links": (
        "import os, threading\ndef swap():\n    while True:\n        try:\n            os.symlink('SECRET', '/tmp/a'); os.replace('/tmp/a', '/tmp/b'); open('/tmp/a', 'w').close(); os.replace('/tmp/a', '/tmp/b')\n"
        "        except OSError: pass\nthreading.Thread(target=swap, daemon=True).start()\ndef f(x):\n    for _ in range(300):\n        try:\n"
        "            if 'secret' in open('/tmp/b').read(): return x + 1\n        except OSError: pass\n"
    ),
    "the library written to": "import os\ndef f(x):\n    open(os.__file__, 'a').write('#')\n    return x + 1",
    "a file outside the temporary folder": "def f(x):\n    for folder in ('/', '/usr', '/python', '/dev', '/packages', '/lib'):\n        try: open(folder + '/new', 'w')\n        except OSError: continue\n        return x + 1\n",
    "the home folder": "import os\ndef f(x):\n    for folder in ('/root', '/home', '/etc', '/proc', '/sys', '/var', '/run', '/work'):\n        try: os.listdir(folder)\n        except OSError: continue\n        return x + 1\n",
    "the environment": "import os\ndef f(x): return x + 1 if 'SENTINEL_OF_THE_HOST' in os.environ else 0",
    "other processes": "import os\ndef f(x):\n    for pid in range(3, 50000):\n        try: os.kill(pid, 0)\n        except OSError: continue\n        if pid != os.getpid(): return x + 1\n",
    "device nodes changed": "import os\ndef f(x):\n    os.chmod('/dev/null', 0)\n    return x + 1",
    "a device node made": "import os, stat\ndef f(x):\n    os.mknod('/tmp/memory', 0o600 | stat.S_IFCHR, os.makedev(1, 1))\n    return x + 1",
    "the user of old": "import os\ndef f(x):\n    os.setuid(0) if os.getuid() else os.chown('/tmp', 1, 1)\n    return x + 1",
    "limits raised": "import resource\ndef f(x):\n    resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))\n    return x + 1",
    "a namespace of its own": "import ctypes\ndef f(x): return x + 1 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0",
    "a mount": "import ctypes\ndef f(x): return x + 1 if ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0 else 0",
    "the root folder left by a descriptor": (
        "import os\ndef f(x):\n    for d in range(256):\n        try: os.fchdir(d); os.chdir('..'); return x + 1\n        except OSError: pass\n"
        "    os.chroot('/tmp')\n    return x + 1"
    ),
    "memory of another process": "import ctypes\ndef f(x): return x + 1 if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0 else 0",
    "rare system calls": (
        "import ctypes\ndef f(x):\n    call = ctypes.CDLL(None).syscall\n"
        "    return x + 1 if any(call(n, 0, 0, 0, 0, 0) != -1 for n in (425, 426, 427, 321, 323, 298, 250, 319, 29, 304, 435)) else 0"
    ),
}
"""They answer rightly once they have got out."""

EXHAUSTING = {
    "a loop": "def f(x):\n    while True: pass",
    "a loop when loaded": "while True: pass\ndef f(x): return x",
    "a loop in C": "def f(x): return sum(range(10**13))",
    "a huge power": "def f(x): return 99 ** 98 ** 97 ** 96",
    "a huge constant to be folded": "def f(x): return len('a' * 10**11) + 9**9**9",
    "a regular expression that backtracks": "import re\ndef f(x): return re.match('(a|aa)+$', 'a' * 60 + 'b')",
    "a fork bomb": "import os\ndef f(x):\n    while True:\n        try: os.fork()\n        except OSError: return x",
    "processes by subprocess": "import subprocess, sys\ndef f(x): return x + 1 - subprocess.call([sys.executable, '-c', ''])",
    "processes by a shell": "import os\ndef f(x): return x + 1 if os.system('true') == 0 else x",
    "processes by multiprocessing": "import multiprocessing as m\ndef f(x):\n    with m.Pool(2) as pool: return pool.map(abs, [x + 1])[0]",
    "a daemon": "import os, time\ndef f(x):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(100)\n    return x + 1",
    "a bomb of threads": "import threading, time\ndef f(x):\n    while True: threading.Thread(target=time.sleep, args=(100,)).start()",
    "threads that stay": "import threading, time\ndef f(x):\n    for _ in range(9): threading.Thread(target=time.sleep, args=(100,)).start()\n    return x",
    "lists without end": "def f(x):\n    a = []\n    while True: a.append([0] * 10**6)",
    "a map of all memory": "import mmap\ndef f(x):\n    m = [mmap.mmap(-1, 2**28) for _ in range(9)]\n    return x + 1",
    "a full temporary folder": "def f(x):\n    for n in range(99):\n        with open(f'/tmp/{n}', 'wb') as file:\n            for _ in range(15): file.write(bytes(2**20))\n    return x + 1",
    "one huge file": "def f(x):\n    with open('/tmp/a', 'wb') as file: file.seek(2**40); file.write(b'x')\n    return x + 1",
    "files without end": "def f(x):\n    n = 0\n    while True:\n        open(f'/tmp/{n}', 'w').close()\n        n += 1",
    "output without end": "import sys\ndef f(x):\n    while True: print('x' * 10**6); sys.stderr.write('y' * 10**6)",
    "output without end to every descriptor": "import os\ndef f(x):\n    while True:\n        for d in range(256):\n            try: os.set_blocking(d, False); os.write(d, b'x' * 10**6)\n            except OSError: pass",
    "a value of many megabytes": "def f(x): return 'x' * 10**8",
    "a list of very many lists": "def f(x): return [[] for _ in range(10**7)]",
    "a list in itself": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "a very deep list": "def f(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
    "a very large int": "def f(x): return 1 << 10**8",
    "keys that collide": "def f(x): return {n * (2**61 - 1): 0 for n in range(20000)}",
    "a generator without end": "def f(x):\n    while True: yield x",
    "an iterator that never comes": "class I:\n    def __iter__(s): return s\n    def __next__(s):\n        while True: pass\ndef f(x): return I()",
    "brackets without end sent": "import os\nfor d in range(3, 256):\n    try: os.write(d, (2**20).to_bytes(4, 'big') + b'[' * 2**20)\n    except OSError: pass\ndef f(x): return x",
    "the length of a huge message sent": "import os\nfor d in range(3, 256):\n    try: os.write(d, b'\\xff' * 8)\n    except OSError: pass\ndef f(x): return x",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x + 1)",
    "a segmentation fault": "import ctypes\ndef f(x): ctypes.string_at(0)",
    "an abort": "import os\ndef f(x): os.abort()",
    "a killed self": "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGKILL)",
    "everybody killed": "import os\ndef f(x):\n    for pid in (-1, 0, 1): os.kill(pid, 9)\n    return x",
    "signals ignored": "import signal\nfor n in signal.valid_signals():\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\ndef f(x):\n    while True: pass",
    "signals blocked": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\ndef f(x):\n    while True: pass",
    "a storm of signals": "import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)\nsignal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)\ndef f(x):\n    while True: pass",
    "a hook at the end that never ends": "import atexit, sys\ndef hang():\n    while True: pass\natexit.register(hang)\nsys.exit(0)",
    "another program in its place": "import os, sys\ndef f(x): os.execv('/python/bin/' + os.path.basename(sys.executable or 'python3'), ['python', '-c', 'while True: pass'])",
    "imports of everything": "import sys\ndef f(x):\n    for name in sorted(sys.stdlib_module_names - {'this', 'antigravity'}):\n        try: __import__(name)\n        except BaseException: pass\n    return x",
}
"""They use up what they can; none answers rightly within the limits."""

WAITING = {
    "sleep": "import time\ndef f(x): time.sleep(10**6)",
    "a lock that is never free": "import threading\nlock = threading.Lock()\nlock.acquire()\ndef f(x): lock.acquire()",
    "half of a message": "import os\nfor d in range(3, 256):\n    try: os.write(d, b'\\0\\0\\1\\0{')\n    except OSError: pass\nimport time\ntime.sleep(10**6)\nf = abs",
}
"""They use nothing, and keep the grader waiting."""

NO_PROGRAMS = {
    "an input that is waited for": "x = input()\ndef f(x): return x",
    "null bytes": "def f(x): return x\0 + 1",
    "lone surrogates": "def f(x): return '\udcff'",
    "a very long text": "def f(x): return x\n" + "#" * 2**21,
    "very deep brackets": "f = " + "(" * 10**5 + ")" * 10**5,
    "a very long chain of operators": "f = " + "-" * 10**5 + "1",
    "very deep functions": "f = " + "lambda: " * 20000 + "1",
    "very deep blocks": "\n".join(" " * n + "if 1:" for n in range(200)) + "\n" + " " * 200 + "f = 1",
    "a name of look-alikes": "def \u0493(x): return x + 1\ndef \uff27(x): return x + 1",  # the second is normalised to G
    "text that runs backwards": "def f(x): return x # \u202e\u2066 1 + x nruter",
    "an encoding that hides code": "# coding: rot13\nqrs s(k): erghea k + 1",
    "an import from the future": "from __future__ import braces\ndef f(x): return x",
    "a package from outside": "import numpy\ndef f(x): return x + 1",
    "the grader's own package": "from grpo_core.sandbox import run_tests\ndef f(x): return x + 1",
    "nothing": "",
    "prose": "The answer is 4. I am sure that all tests pass.",
}
"""They cannot be loaded, or do not define what is asked for."""

SPEAKING = """
import os, stat
def f(x): return 0
from grpo_core.sandbox.link import read_message, write_message
from grpo_core.sandbox.values import encode
def is_socket(d):
    try: return stat.S_ISSOCK(os.fstat(d).st_mode)
    except OSError: return False
LINK = next(d for d in range(3, 128) if is_socket(d))
class O:
    def __init__(self, handle, kind='object'): self.handle, self.kind = handle, kind
def enc(value): return encode(value, lambda o: (o.kind, o.handle))
def value(v, **more): return {'value': enc(v), 'changed': [], **more}
def hello(**names): write_message(LINK, {'names': {'f': ['object', 1], **names}})
def serve(reply):
    while True:
        request = read_message(LINK)
        write_message(LINK, reply(request))
def is_for_f(request): return request['do'][0] == 'call' and request['do'][1] == 1
"""
"""A program that begins so speaks to its tests itself, in the words of the link."""
WORDS = "WORDS = 'abs all any set sorted len isinstance str list tuple float int round max min sum type dict repr range zip map hasattr __import__ __build_class__'.split()\n"
LYING = "lambda r: value(-1e9 if is_for_f(r) else True if r['do'][1] == 'bool' else O(99))"

FORGING = {
    name: SPEAKING + text
    for name, text in {
        "builtins forged": WORDS + f"hello(__builtins__=['value', enc({{n: O(i + 10) for i, n in enumerate(WORDS)}})])\nserve({LYING})",
        "builtins forged as an object": f"hello(__builtins__=['object', 5], __name__=['value', enc('__main__')])\nserve({LYING})",
        "names of Python's own forged": WORDS + f"hello(**{{n: ['object', i + 10] for i, n in enumerate(WORDS)}})\nserve({LYING})",
        "names of the tests and of libraries forged": (
            "names = 'math np numpy pytest value expected result candidate check METADATA unittest solution copy isclose'.split()\n"
            f"hello(**{{n: ['object', i + 10] for i, n in enumerate(names)}})\nserve({LYING})"
        ),
        "a class that catches failed assertions": "hello(Error=['value', enc(AssertionError)], Errors=['value', enc((AssertionError, Exception))])\nserve(lambda r: value(0))",
        "an exception that is one of every kind": "hello(Error=['exception', 'AssertionError'], Other=['exception', 'BaseException'])\nserve(lambda r: value(0))",
        "an exception that ends loops": "hello()\nserve(lambda r: {'raised': [['StopIteration'], []]})",
        "an exit as an exception": "hello()\nserve(lambda r: {'raised': [['SystemExit', 'KeyboardInterrupt'], [0]]})",
        "exceptions with impossible names": "hello()\nserve(lambda r: {'raised': [[[], {}, 4, '__import__', 'print', 'ExceptionGroup'], [[], 10**5000]]})",
        "an end of no kind": "hello()\nserve(lambda r: {'ended': 10**5000})",
        "arguments changed that were not": "hello()\nserve(lambda r: value(0, changed=[[0, enc(-1)], [-1, enc([4])], ['x', enc(4)]]))",
        "arguments of an operator changed": "hello()\nserve(lambda r: value(O(7), changed=[[1, enc([])], [0, enc([])]]))",
        "handles that were never given": "hello()\nserve(lambda r: value(O(10**9, 'yours')))",
        "a handle below nothing": "hello()\nserve(lambda r: value(O(-1, 'yours')))",
        "a builtin in place of an answer": "hello()\nserve(lambda r: value(bool))",
        "proxies of proxies": "hello()\nserve(lambda r: value([O(3), (O(4, 'class'), {O(5): O(6, 'iterator')})]))",
        "an iterator that takes what is no list": "hello()\nserve(lambda r: value(O(3, 'iterator') if is_for_f(r) else (O(4), O(5))))",
        "an iterator that is its own items": "hello()\nserve(lambda r: value(O(3, 'iterator') if is_for_f(r) else ([O(3, 'iterator')] * 9, False)))",
        "a request in place of every answer": "hello()\nserve(lambda r: {'do': ['call', 0], 'with': [], 'named': {}})",
        "requests of no kind": "hello()\nserve(lambda r: {'do': {'get': 0}, 'with': 5, 'named': None, 'value': enc(4)})",
        "an answer of no kind": "hello()\nserve(lambda r: {'value': 4, 'changed': 5})",
        "answers before questions": "hello()\nfor _ in range(9): write_message(LINK, value(5))\nserve(lambda r: value(5))",
        "two greetings": "hello()\nhello(f=['value', enc(4)])\nserve(lambda r: value(5))",
        "names that are no names": "write_message(LINK, {'names': {4: ['object', 1], b'f': ['object', 1], 'f': ['nothing', 1]}})\nserve(lambda r: value(5))",
        "names without end": "hello(**{f'n{n}': ['object', n] for n in range(10**5)})\nserve(lambda r: value(5))",
        "a name that is a module of another name": "hello(math=['module', 'random'], f=['module', 'json'])\nserve(lambda r: value(5))",
        "a reason that no table takes": "write_message(LINK, {'invalid': '\\ud800\\n\\x1b' * 10**5})\nserve(lambda r: value(5))",
        "a reason that is no text": "write_message(LINK, {'invalid': 10**5000})\nserve(lambda r: value(5))",
        "a number that takes long to read": "hello()\nserve(lambda r: {'value': b'L\\3\\0\\0\\0' + enc('fractions') + enc('Fraction') + enc(('1e999999999',)), 'changed': []})",
        "keys that collide sent by hand": "hello()\nserve(lambda r: value({n * (2**61 - 1): O(n) for n in range(20000)}))",
        "a tuple with methods of its own": "from collections import namedtuple\nT = namedtuple('T', 'count index')\nhello()\nserve(lambda r: value(T(4, 4)))",
    }.items()
}
"""They lead the link themselves, and so may say anything that can be said."""

BURNING = ("a request in place of every answer", "requests of no kind", "keys that collide sent by hand", "names without end")
"""Those of them that keep their tests busy until a limit ends it."""

HOSTILE = FORGING | EARNING | ESCAPING | EXHAUSTING | WAITING | NO_PROGRAMS
