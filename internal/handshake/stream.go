package handshake

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// Dial performs the dialler's side of a handshake on a new connection. It returns the listener, and
// the connection to use from then on: c itself, or an encrypted connection over c. The caller sets
// a deadline on c and closes c after an error. Unless the connection is encrypted, Dial reads no
// bytes after the handshake from c.
func Dial(c net.Conn, self Party, key []byte) (net.Conn, Party, error) {
	d := NewDialler(self, key)
	answer, err := exchange(c, d.Hello())
	if err != nil {
		return nil, Party{}, err
	}
	proving, err := d.Prove(answer)
	if err != nil {
		return nil, Party{}, err
	}
	accept, err := exchange(c, proving)
	if err != nil {
		return nil, Party{}, err
	}
	if _, err := d.Finish(accept); err != nil {
		return nil, d.Peer(), err
	}
	c, err = d.protect(c, byDialler, byListener)
	return c, d.Peer(), err
}

// Accept performs the listener's side of a handshake on a new connection. It returns the
// dialler, and a connection as [Dial] does. If it rejects the dialler, it sends the reason.
// admit, if not nil, is called after the dialler's proof, and rejects the dialler by an error.
func Accept(c net.Conn, self Party, key []byte, admit func() error) (net.Conn, Party, error) {
	l := NewListener(self, key)
	hello, err := readMessage(c)
	if err != nil {
		return nil, Party{}, err
	}
	refuse := func(why error) (net.Conn, Party, error) {
		writeMessage(c, l.Refuse(why)) // an error of the write matters less than why
		return nil, l.Peer(), why
	}
	answer, err := l.Answer(hello)
	if err != nil {
		return refuse(err)
	}
	proving, err := exchange(c, answer)
	if err != nil {
		return nil, Party{}, err
	}
	err = l.Verify(proving)
	if err == nil && admit != nil {
		err = admit()
	}
	if err != nil {
		return refuse(err)
	}
	if err := writeMessage(c, l.Accept(nil)); err != nil {
		return nil, l.Peer(), err
	}
	c, err = l.protect(c, byListener, byDialler)
	return c, l.Peer(), err
}

func exchange(c io.ReadWriter, m []byte) ([]byte, error) {
	if err := writeMessage(c, m); err != nil {
		return nil, err
	}
	return readMessage(c)
}

// A message on a connection follows its length, which has two bytes.

func writeMessage(w io.Writer, m []byte) error {
	_, err := w.Write(append(binary.LittleEndian.AppendUint16(nil, uint16(len(m))), m...))
	return err
}

func readMessage(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint16(size[:]))
	if n > MaxMessage {
		return nil, fmt.Errorf("invalid handshake: the peer's message has %d bytes, want at most %d", n, MaxMessage)
	}
	m := make([]byte, n)
	_, err := io.ReadFull(r, m)
	return m, err
}

// IsHangUp reports whether err says that the other end has closed a connection. During a handshake
// this means that the other end was too busy or speaks another protocol.
func IsHangUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
