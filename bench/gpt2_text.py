"""Writes the Python sources of this machine to a file, for goddp tokens: each file is a document.

    gpt2_text.py FILE megabytes

The files are those of Python's library and of all installed packages, in an order that only their content
decides, so that any part of the text is a sample of all. Of files with the same content there is one.
"""
import hashlib
import os
import site
import sys
import sysconfig

folders = {*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "/usr/lib/python3", sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix})}
documents = {}
for folder in sorted(folders):
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                with open(os.path.join(place, name), "rb") as f:
                    content = f.read()
                try:
                    content.decode()
                except UnicodeDecodeError:
                    continue
                if content.strip() and b"<|endoftext|>" not in content:
                    documents[hashlib.sha256(content).digest()] = content
written = 0
with open(sys.argv[1], "wb") as out:
    for key in sorted(documents):
        if written >= float(sys.argv[2]) * 1e6:
            break
        written += out.write(documents[key] + b"<|endoftext|>")
print(f"{len(documents)} files of {sum(map(len, documents.values())) / 1e6:.0f} MB, {written / 1e6:.0f} MB written")
