package launcher

import (
	"crypto/rand"
	"os"
	"path/filepath"

	"github.com/goddp/goddp/internal/handshake"
)

// secretFile is, in the run's folder, the file with the secret of a job that was given
// none.
const secretFile = "secret"

// ownSecretVar names, beside handshake.TokenFileVar, the file where it is a launcher
// that made the secret: for its own workers, and no other job that one of them starts.
const ownSecretVar = "GODDP_LAUNCHER_SECRET"

// security is how the job keeps others out.
type security struct {
	secret   []byte
	given    bool // by the user, in a file
	insecure bool
}

// readSecurity returns what the workers' environment says of it. It makes a secret if
// there is none.
func readSecurity(env []string) (s security, err error) {
	find := lookup(env)
	getenv := func(name string) string {
		value, _ := find(name)
		if ours, _ := find(ownSecretVar); name == handshake.TokenFileVar && value == ours {
			return ""
		}
		return value
	}
	if s.insecure, err = handshake.ReadInsecure(getenv); err != nil {
		return s, err
	}
	if s.secret, err = handshake.ReadSecret(getenv); err != nil {
		return s, err
	}
	if s.given = s.secret != nil; !s.given {
		s.secret = []byte(rand.Text() + rand.Text())
	}
	return s, nil
}

// publish writes a secret that was not given to a file in dir that only this user can
// read, and returns the variables by which the workers find it.
func (s *security) publish(dir string) (env []string, err error) {
	if s.given {
		return nil, nil
	}
	path := filepath.Join(dir, secretFile)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(append(s.secret, '\n'))
	if closing := f.Close(); err == nil {
		err = closing
	}
	return []string{handshake.TokenFileVar + "=" + path, ownSecretVar + "=" + path}, err
}

// withdraw removes the file of the secret: the run's folder may be kept.
func (s *security) withdraw(dir string) error {
	if s.given {
		return nil
	}
	return os.Remove(filepath.Join(dir, secretFile))
}
