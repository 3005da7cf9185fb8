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

// Identity is the key that the agents of a job share. Every agent derives it from the job's token and name.
// An agent proves that it belongs to the job by TLS with a certificate of this key.
type Identity struct {
	key  ed25519.PrivateKey
	cert tls.Certificate
}

// NewIdentity derives the identity of a job. A job without a token has an identity that everybody can
// derive: its connections are encrypted, but prove nothing.
func NewIdentity(token []byte, job string) (*Identity, error) {
	seed, err := hkdf.Key(sha256.New, token, []byte(job), "goddp: an agent's key", ed25519.SeedSize)
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

// errOtherToken is the error of a connection with a process that does not have the job's token and name.
var errOtherToken = errors.New("it has another token, or another --rdzv-id")

// config returns the TLS configuration of both ends of a connection between agents.
func (id *Identity) config() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{id.cert},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // there is no authority: VerifyConnection compares the keys
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) != 1 {
				return fmt.Errorf("%d certificates, want 1", len(s.PeerCertificates))
			}
			public := s.PeerCertificates[0].PublicKey.(crypto.PublicKey)
			other, ok := public.(ed25519.PublicKey)
			if !ok || !bytes.Equal(other, id.key.Public().(ed25519.PublicKey)) {
				return errOtherToken
			}
			return nil
		},
	}
}
