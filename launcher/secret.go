package launcher

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
)

// secretFile is the name of the file, in the run's folder, that holds the job's secret if
// the user gave none.
const secretFile = "secret"

// security holds the settings that keep other processes out of the job.
type security struct {
	secret   []byte
	given    bool   // the user gave the secret
	file     string // the absolute path of the file in which the user gave it; "" if there is none
	insecure bool   // whether jobenv.InsecureVar is on
}

// readSecurity reads the settings from the workers' environment. If it finds no secret, it
// makes one.
func readSecurity(env []string) (s security, err error) {
	given, err := jobenv.ReadSecurity(jobenv.Users(lookup(env)))
	if err != nil {
		return s, err
	}
	s.insecure = given.Insecure
	if s.secret, err = handshake.ReadSecret(given); err != nil {
		return s, err
	}
	if s.given = s.secret != nil; !s.given {
		s.secret = []byte(rand.Text() + rand.Text())
		return s, nil
	}
	if given.TokenFile != "" {
		s.file, err = filepath.Abs(given.TokenFile) // a worker may change its folder before it reads the file
	}
	return s, err
}

// publish writes the secret of a round to a file in dir that only this user can read. It
// returns the variables by which the workers find the file. If the user gave the secret,
// publish writes nothing.
func (s *security) publish(dir string, secret []byte) (env []string, err error) {
	if s.file != "" {
		return []string{jobenv.TokenFileVar + "=" + s.file}, nil
	}
	if s.given {
		return nil, nil
	}
	path := filepath.Join(dir, secretFile)
	err = files.WriteBytes(path, 0o600, append(slices.Clone(secret), '\n'))
	return jobenv.Chosen(jobenv.TokenFileVar, path), err
}

// withdraw removes the file with the secret, because the run's folder may be kept.
func (s *security) withdraw(dir string) error {
	if s.given {
		return nil
	}
	return os.Remove(filepath.Join(dir, secretFile))
}
