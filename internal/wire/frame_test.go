package wire

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
)

func TestDecodeReturnsWhatWasEncoded(t *testing.T) {
	one := Encode([]string{"a", "b"})
	in := bytes.NewReader(append(one, Encode([]string{})...))
	var first, second []string
	if err := Decode(in, 64, &first); err != nil || strings.Join(first, "") != "ab" {
		t.Errorf("%q, %v", first, err)
	}
	if err := Decode(in, 64, &second); err != nil || len(second) != 0 {
		t.Errorf("%q, %v", second, err)
	}
	if err := Decode(in, 64, &first); err != io.EOF {
		t.Errorf("after the last message: %v", err)
	}
	for n := 1; n < len(one); n++ {
		if err := Decode(bytes.NewReader(one[:n]), 64, &first); err != io.ErrUnexpectedEOF {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
	if err := Decode(bytes.NewReader(one), 4, &first); err == nil || !strings.Contains(err.Error(), "at most 4") {
		t.Errorf("a message that is too long: %v", err)
	}
}

func TestPutRefusesMoreThanTheLimit(t *testing.T) {
	o := NewOutbox(8)
	if !o.Put(make([]byte, 8)) || o.Put(make([]byte, 1)) {
		t.Error("the limit of 8 bytes does not hold")
	}
}

func TestRunWritesAllMessagesBeforeItReturns(t *testing.T) {
	a, b := net.Pipe()
	o := NewOutbox(64)
	o.Put([]byte("one"))
	o.Put([]byte("two"))
	o.Close()
	done := make(chan error, 1)
	go func() {
		done <- o.Run(a)
		a.Close()
	}()
	if got, err := io.ReadAll(b); string(got) != "onetwo" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
