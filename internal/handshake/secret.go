package handshake

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/jobenv"
)

// The size of a secret in bytes, without white space around it.
const (
	minSecret = 16
	maxSecret = 4 << 10
)

// ReadSecret returns the secret in the file s.TokenFile, or else s.Token, without white space around it. It
// returns nil if neither is set. An error is a *InvalidSecretError and contains no part of the secret. It is an
// error if this user owns the file and others can read or change it.
func ReadSecret(s jobenv.Security) ([]byte, error) {
	path, text := s.TokenFile, []byte(s.Token)
	source := jobenv.TokenVar
	switch {
	case path != "":
		source = fmt.Sprintf("%s=%q", jobenv.TokenFileVar, path)
		var err error
		if text, err = readHead(path); err != nil {
			return nil, &InvalidSecretError{source, err}
		}
	case len(text) == 0:
		return nil, nil
	}
	secret := bytes.TrimSpace(text)
	if len(secret) < minSecret || len(text) > maxSecret {
		return nil, &InvalidSecretError{source, fmt.Errorf("the secret has %d bytes, want %d to %d", len(secret), minSecret, maxSecret)}
	}
	return secret, nil
}

// InvalidSecretError says what is wrong with the secret that the user gave.
type InvalidSecretError struct {
	Source string // the variable, with its value unless the value is the secret
	Err    error
}

func (e *InvalidSecretError) Error() string { return e.Source + ": " + e.Err.Error() }
func (e *InvalidSecretError) Unwrap() error { return e.Err }

// readHead returns a file's content. If the file is too large for a secret, readHead returns one byte more than a
// secret may have. An error does not name the file.
func readHead(path string) (head []byte, err error) {
	f, err := files.Open(path)
	if err == nil {
		defer f.Close()
		if err = checkAccess(f); err == nil {
			head, err = io.ReadAll(io.LimitReader(f, maxSecret+1))
		}
	}
	var named *fs.PathError
	var other *files.NotRegularError
	if errors.As(err, &named) {
		err = named.Err
	} else if errors.As(err, &other) {
		err = fmt.Errorf("want a regular file, got %s", other.Kind)
	}
	return head, err
}

// checkAccess returns an error if a file is this user's, and others can read or change it. Only its owner can
// fix that, so the mode of another user's file, such as root's in Kubernetes, is not checked.
func checkAccess(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if owner := int(info.Sys().(*syscall.Stat_t).Uid); owner == os.Geteuid() && info.Mode()&0o066 != 0 {
		return fmt.Errorf("others can read or change it (mode %04o): chmod 600 %s", info.Mode().Perm(), f.Name())
	}
	return nil
}
