package host

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"
)

// A stranger who sends a descriptor with every byte cannot use up those of this process.
func TestDescriptorsThatNobodyTakesEndTheConnection(t *testing.T) {
	l, err := net.Listen("unix", "@goddp-test-"+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c, file := wrapUnix(in), int(os.Stdin.Fd())
	defer c.Close()
	for range 100 {
		if err := writeFD(wrapUnix(out), []byte{0}, file); err != nil {
			t.Fatal(err)
		}
	}
	n, err := io.ReadFull(c, make([]byte, 100))
	if err == nil || n > maxFDs+1 || !strings.Contains(err.Error(), "unclaimed file descriptors, want at most 16") {
		t.Errorf("read %d bytes with a descriptor each: %v", n, err)
	}
}
