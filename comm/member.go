package comm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"sync"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/store"
)

// readMember reads the identity that this process sends to the job's store and to its peers.
func (j *joiner) readMember() error {
	w, s := j.world, j.env.Security
	secret, err := readSecret(s)
	if err != nil {
		return err
	}
	if secret == nil && !s.Insecure && w.Size > 1 {
		if err := handshake.CheckOwnUser(); err != nil {
			return fmt.Errorf("the ranks cannot authenticate each other by their Unix users: %w: set %s on all ranks to a file with the same secret", err, jobenv.TokenFileVar)
		}
	}
	j.member = store.Member{Job: handshake.JobFromEnv(w.Size), Rank: w.Rank, Secret: secret, Insecure: s.Insecure}
	return nil
}

// secrets holds the secrets that this process has read, by the names of their files.
var secrets sync.Map

// readSecret returns the job's secret, or nil. A file that has vanished since an earlier Init, such as a
// launcher's temporary one, has the secret that it had.
func readSecret(s jobenv.Security) ([]byte, error) {
	secret, err := handshake.ReadSecret(s)
	if known, ok := secrets.Load(s.TokenFile); ok && errors.Is(err, fs.ErrNotExist) {
		return known.([]byte), nil
	}
	if err == nil && s.TokenFile != "" {
		secrets.Store(s.TokenFile, secret)
	}
	return secret, err
}

// checkExposure returns an error if rank 0 will refuse to host the store, because other hosts
// could reach the store and the job has no secret. The other ranks call checkExposure, so that
// they fail at once rather than wait for the store.
func checkExposure(ctx context.Context, w World, m *store.Member) error {
	if m.Secret != nil || m.Insecure {
		return nil
	}
	hosts, err := net.DefaultResolver.LookupIPAddr(ctx, w.MasterAddr)
	if err != nil {
		return nil // connecting to the store returns the error
	}
	for _, h := range hosts {
		if h.IP.IsLoopback() && (w.oneHost() || namesLoopback(w.MasterAddr)) {
			return nil
		}
	}
	return fmt.Errorf("store %s: %w", w.masterAddr(), store.ErrExposed)
}

// warnOpenStore logs a warning on rank 0 if the job's store serves every client and the job has no
// secret with which ranks could authenticate each other.
func warnOpenStore(w World, client *store.Client, m *store.Member, log *slog.Logger) {
	if w.Rank == 0 && client.IsPyTorchStore() && m.Secret == nil && !m.Insecure {
		log.Warn("the launcher's store serves anybody who can reach it, and it holds the key by which the ranks authenticate each other: "+
			"name a file with a secret in "+jobenv.TokenFileVar+", the same for all ranks, or set "+jobenv.InsecureVar+"=1 where the network is trusted",
			"store", w.masterAddr())
	}
}
