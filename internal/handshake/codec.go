package handshake

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// A message consists of magic, its kind, and its fields in a fixed order. A number has four
// bytes, little-endian. A text follows its length, which has two bytes.

// encoder appends the fields of a message.
type encoder []byte

func newEncoder(k kind) encoder { return append(encoder(magic), byte(k)) }

func (e *encoder) number(n int) { *e = binary.LittleEndian.AppendUint32(*e, uint32(int32(n))) }

func (e *encoder) flag(b bool) {
	if b {
		e.number(1)
	} else {
		e.number(0)
	}
}

func (e *encoder) text(s string) { e.bytes([]byte(s)) }

func (e *encoder) bytes(b []byte) {
	*e = binary.LittleEndian.AppendUint16(*e, uint16(len(b)))
	*e = append(*e, b...)
}

func (e *encoder) process(p Process) {
	e.text(p.ID)
	e.text(p.Host)
	e.number(p.PID)
	*e = binary.LittleEndian.AppendUint64(*e, uint64(p.Started.UnixMilli()))
}

// decoder reads the fields of a message. After an error it returns zero values.
type decoder struct {
	rest []byte
	err  error
}

// newDecoder checks the size, the magic and the kind of a message.
func newDecoder(b []byte) (kind, decoder, error) {
	switch {
	case len(b) > MaxMessage:
		return 0, decoder{}, fmt.Errorf("invalid handshake: the peer's message has %d bytes, want at most %d", len(b), MaxMessage)
	case len(b) <= len(magic) || string(b[:len(magic)]) != magic:
		return 0, decoder{}, fmt.Errorf("want a handshake of version %q, not bytes that begin with %.16q", magic, b)
	}
	return kind(b[len(magic)]), decoder{rest: b[len(magic)+1:]}, nil
}

var errCutOff = errors.New("handshake that is cut off")

func (d *decoder) take(n int) []byte {
	if d.err == nil && len(d.rest) < n {
		d.err = errCutOff
	}
	if d.err != nil {
		return make([]byte, min(n, 8))
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) number() int { return int(int32(binary.LittleEndian.Uint32(d.take(4)))) }

func (d *decoder) flag() bool { return d.number() != 0 }

// text reads a text and replaces characters that would disturb a log.
func (d *decoder) text() string { return printable(string(d.bytes())) }

func (d *decoder) bytes() []byte {
	n := int(binary.LittleEndian.Uint16(d.take(2)))
	if n > maxText && d.err == nil {
		d.err = fmt.Errorf("invalid handshake: a string in the peer's message has %d bytes, want at most %d", n, maxText)
	}
	if d.err != nil {
		return nil
	}
	return bytes.Clone(d.take(n))
}

func (d *decoder) process() Process {
	p := Process{ID: d.text(), Host: d.text(), PID: d.number()}
	if ms := int64(binary.LittleEndian.Uint64(d.take(8))); ms > 0 {
		p.Started = time.UnixMilli(ms)
	}
	return p
}

// end returns the first error. Bytes after the last field are an error too.
func (d *decoder) end() error {
	if d.err == nil && len(d.rest) > 0 {
		d.err = fmt.Errorf("handshake with %d extra bytes", len(d.rest))
	}
	return d.err
}
