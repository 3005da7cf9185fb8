package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, map[string]func(){"golaunch-etcd": main}) }

// A user who starts golaunch-etcd learns that it is not for users. golaunch starts it with a pipe and no arguments.
func TestUsersAreTurnedAway(t *testing.T) {
	device, err := os.Open(os.DevNull) // as a terminal, it is a character device
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	for _, test := range []struct {
		args  []string
		stdin io.Reader
		code  int
	}{
		{[]string{"--help"}, strings.NewReader(""), 2},
		{nil, device, 2},
		{nil, strings.NewReader(""), 0}, // a pipe that ends
	} {
		cmd := testkit.Self(t, "golaunch-etcd", test.args...)
		cmd.Stdin = test.stdin
		got := testkit.Run(t, cmd)
		if isAnswered := strings.Contains(got.Stderr, "golaunch-etcd is started by golaunch --rdzv-backend etcd"); got.Code != test.code || isAnswered != (test.code == 2) {
			t.Errorf("%q: %+v, want exit code %d", test.args, got, test.code)
		}
	}
}
