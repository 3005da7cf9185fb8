package handshake

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Dial performs the dialler's side of a handshake on a new connection, and returns the
// listener. The caller bounds its time by a deadline of c. Dial reads no bytes after the
// handshake.
func Dial(c io.ReadWriter, self Party, key []byte) (Party, error) {
	d := NewDialler(self, key)
	answer, err := exchange(c, d.Hello())
	if err != nil {
		return Party{}, err
	}
	proving, err := d.Prove(answer)
	if err != nil {
		return Party{}, err
	}
	accept, err := exchange(c, proving)
	if err != nil {
		return Party{}, err
	}
	_, err = d.Finish(accept)
	return d.Peer(), err
}

// Accept performs the listener's side of a handshake on a new connection, and returns the
// dialler. If it rejects the dialler, it sends the reason. admit, if not nil, is called
// after the dialler's proof, and rejects the dialler by an error.
func Accept(c io.ReadWriter, self Party, key []byte, admit func() error) (Party, error) {
	l := NewListener(self, key)
	hello, err := readMessage(c)
	if err != nil {
		return Party{}, err
	}
	refuse := func(why error) (Party, error) {
		writeMessage(c, l.Refuse(why)) // an error of the write matters less than why
		return l.Peer(), why
	}
	answer, err := l.Answer(hello)
	if err != nil {
		return refuse(err)
	}
	proving, err := exchange(c, answer)
	if err != nil {
		return Party{}, err
	}
	err = l.Verify(proving)
	if err == nil && admit != nil {
		err = admit()
	}
	if err != nil {
		return refuse(err)
	}
	return l.Peer(), writeMessage(c, l.Accept(nil))
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
		return nil, fmt.Errorf("handshake of %d bytes, at most %d", n, MaxMessage)
	}
	m := make([]byte, n)
	_, err := io.ReadFull(r, m)
	return m, err
}
