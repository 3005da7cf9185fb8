package rendezvous

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Identity is an Ed25519 key that the agents of a job share. An agent proves that it has the key by
// TLS with a certificate of the key.
type Identity struct {
	key  ed25519.PrivateKey
	cert tls.Certificate
}

// NewIdentity derives a job's identity from its secret and its name by HKDF-SHA256. If secret is empty,
// everybody can derive the identity: its connections are encrypted, but prove nothing.
func NewIdentity(secret []byte, job string) (*Identity, error) {
	seed, err := hkdf.Key(sha256.New, secret, []byte(job), "goddp: an agent's key", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	// Only the key of the certificate is compared. So clocks that differ do no harm.
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &Identity{key, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}}, nil
}

// ErrOtherKey is the error of a TLS handshake with a process that has another identity.
var ErrOtherKey = errors.New("the other end has a different TLS key: want one from the same token and --rdzv-id")

// Config returns the TLS configuration of both ends of a connection. Each end accepts the other one
// if it has the same identity.
func (id *Identity) Config() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{id.cert},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // there is no authority: VerifyConnection compares the keys
		SessionTicketsDisabled: true,
		// Send records of full size from the start. Smaller records would only help a receiver that uses the first
		// bytes before the rest of a record has arrived.
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) != 1 {
				return fmt.Errorf("the other end sent %d certificates, want 1", len(s.PeerCertificates))
			}
			public := s.PeerCertificates[0].PublicKey.(crypto.PublicKey)
			other, ok := public.(ed25519.PublicKey)
			if !ok || !bytes.Equal(other, id.key.Public().(ed25519.PublicKey)) {
				return ErrOtherKey
			}
			return nil
		},
	}
}
