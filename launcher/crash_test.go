package launcher

import (
	"slices"
	"testing"
)

// The report shows the program's frames first, and no frame that only passes a panic on.
func TestDescribeStack(t *testing.T) {
	const stack = `panic: runtime error: index out of range [3] with length 0 [recovered, repanicked]

goroutine 1 [running]:
github.com/goddp/goddp/comm.run.func1()
	/home/u/goddp/comm/main.go:51 +0x9d
panic({0x7177a0?, 0x87be0694c00?})
	/usr/local/go/src/runtime/panic.go:860 +0x13a
runtime.goPanicIndex(0x3, 0x0)
	/usr/local/go/src/runtime/panic.go:115 +0x13a
mylib.(*Batch[...]).Row(0x1)
	/home/u/mylib/batch.go:12 +0x1d
main.train.func2(...)
	/home/u/train/main.go:30
github.com/goddp/goddp/data.(*Loader).Each(0x0, 0x1)
	/home/u/goddp/data/loader.go:7 +0x1d
slices.All[...](...)
	/usr/local/go/src/slices/iter.go:16
main.train({0x7c9b60?, 0x87be05f8660?})
	/home/u/train/main.go:32 +0x1f5
created by main.main in goroutine 1
	/home/u/train/main.go:40 +0x1a

goroutine 7 [select]:
main.never()
	/home/u/train/main.go:99 +0x1a
`
	want := []string{
		"in the program, innermost call first:",
		"  mylib.(*Batch[...]).Row /home/u/mylib/batch.go:12",
		"  main.train.func2 /home/u/train/main.go:30",
		"  main.train /home/u/train/main.go:32",
		"  created by main.main in goroutine 1 /home/u/train/main.go:40",
		"in libraries, innermost call first:",
		"  github.com/goddp/goddp/data.(*Loader).Each /home/u/goddp/data/loader.go:7",
		"  slices.All[...] /usr/local/go/src/slices/iter.go:16",
	}
	if got := describeStack(stack); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := describeStack("Traceback (most recent call last):\n  File \"train.py\", line 7"); got != nil {
		t.Errorf("got %q for a stack of Python", got)
	}
}
