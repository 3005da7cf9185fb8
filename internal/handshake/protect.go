package handshake

import (
	"bufio"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
)

// isProtected reports whether the two ends encrypt what follows. Both ends decide the same, because all
// that they decide by is in the two messages that the proofs cover.
func (e *end) isProtected() bool {
	oneHost := e.self.Machine != "" && e.self.Machine == e.peer.Machine
	return e.self.betweenRanks() && !oneHost && e.self.HasSecret && !e.self.Unprotected
}

// protect returns the connection that the two ends of c use after the handshake. sending and receiving are
// the directions of this end's proof and of the other end's.
func (e *end) protect(c net.Conn, sending, receiving string) (net.Conn, error) {
	if !e.isProtected() {
		return c, nil
	}
	if e.private == nil {
		return nil, errors.New("ranks on different hosts agree on their keys by X25519, which Go's FIPS mode (GODEBUG=fips140=only) does not allow")
	}
	share, err := ecdh.X25519().NewPublicKey(e.peer.share)
	if err != nil {
		return nil, err
	}
	// The shared secret gives forward secrecy: it exists only as long as the connection, and cannot be derived
	// from the job's secret later.
	shared, err := e.private.ECDH(share)
	if err != nil {
		return nil, err
	}
	p := &ProtectedConn{Conn: c, in: bufio.NewReaderSize(c, headerSize+maxRecord+tagSize)}
	for direction, state := range map[string]*sealing{sending: &p.sending, receiving: &p.receiving} {
		key, err := hkdf.Key(sha256.New, shared, proof(e.key, forData, e.hello, e.answer), direction, keySize)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		if state.aead, err = cipher.NewGCM(block); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// A record on the connection is a header, which holds the length of the data in four bytes, the encrypted
// data and a tag. The tag authenticates the header too.
const (
	headerSize = 4
	maxRecord  = 32 << 10 // bytes of data
	tagSize    = 16
	nonceSize  = 12
	keySize    = 16 // AES-128
)

// sealing is one direction of a connection. Its key is used only for this direction of this connection, so
// a record's number can be its nonce.
type sealing struct {
	aead  cipher.AEAD
	nonce [nonceSize]byte // the number of the next record
}

// next counts a record.
func (s *sealing) next() {
	number := s.nonce[nonceSize-8:]
	binary.BigEndian.PutUint64(number, binary.BigEndian.Uint64(number)+1)
}

// ProtectedConn is a connection whose data are encrypted and authenticated with AES-GCM. One
// goroutine at a time may read, and one may write.
type ProtectedConn struct {
	net.Conn           // carries the records
	in                 *bufio.Reader
	sending, receiving sealing
	unread             []byte // data of the last record, in the buffer of in
	sealed             []byte // what Seal returned last
	broken             error  // the error of a Write, which may have written a part of a record
}

// Seal encrypts data without writing it. The caller writes the result to p.Conn before it calls Seal or
// Write again. The result is valid until then.
func (p *ProtectedConn) Seal(data []byte) []byte {
	p.sealed = p.sealed[:0]
	for len(data) > 0 {
		n := min(len(data), maxRecord)
		p.seal(data[:n])
		data = data[n:]
	}
	return p.sealed
}

// seal appends a record with data to sealed.
func (p *ProtectedConn) seal(data []byte) {
	start := len(p.sealed)
	p.sealed = binary.BigEndian.AppendUint32(p.sealed, uint32(len(data)))
	p.sealed = p.sending.aead.Seal(p.sealed, p.sending.nonce[:], data, p.sealed[start:])
	p.sending.next()
}

func (p *ProtectedConn) Write(b []byte) (n int, err error) {
	for n < len(b) && p.broken == nil {
		part := b[n:min(len(b), n+maxRecord)]
		if _, p.broken = p.Conn.Write(p.Seal(part)); p.broken == nil {
			n += len(part)
		}
	}
	return n, p.broken
}

func (p *ProtectedConn) Read(b []byte) (int, error) {
	if len(p.unread) == 0 {
		if err := p.open(); err != nil {
			return 0, err
		}
	}
	n := copy(b, p.unread)
	p.unread = p.unread[n:]
	return n, nil
}

// open reads a record and decrypts it in place, in the buffer of in. The data is valid until the next record is
// read.
func (p *ProtectedConn) open() error {
	header, err := p.in.Peek(headerSize)
	if err != nil {
		return p.truncated(err)
	}
	n := binary.BigEndian.Uint32(header)
	if n == 0 || n > maxRecord {
		return ErrAltered
	}
	record, err := p.in.Peek(headerSize + int(n) + tagSize)
	if err != nil {
		return p.truncated(err)
	}
	header, sealed := record[:headerSize], record[headerSize:]
	if p.unread, err = p.receiving.aead.Open(sealed[:0], p.receiving.nonce[:], sealed, header); err != nil {
		return ErrAltered
	}
	p.receiving.next()
	_, err = p.in.Discard(len(record))
	return err
}

// truncated returns err, or io.ErrUnexpectedEOF if the connection ended within a record.
func (p *ProtectedConn) truncated(err error) error {
	if err == io.EOF && p.in.Buffered() > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ErrAltered is the error of a connection whose bytes differ from the bytes that the other end wrote.
var ErrAltered = errors.New("the connection's data was modified in transit")
