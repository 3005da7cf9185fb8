package jobenv

import "testing"

func TestBool(t *testing.T) {
	for _, test := range []struct {
		vars     map[string]string
		fallback bool
		want     bool
		err      string
	}{
		{nil, true, true, ""},
		{nil, false, false, ""},
		{map[string]string{"A": ""}, true, true, ""},
		{map[string]string{"A": "0"}, true, false, ""},
		{map[string]string{"B": "Yes"}, false, true, ""},
		{map[string]string{"A": "", "B": "TRUE"}, false, true, ""},
		{map[string]string{"A": "no", "B": "1"}, true, false, ""},
		{map[string]string{"A": "f", "B": "maybe"}, true, false, ""},
		{map[string]string{"B": "maybe"}, true, false, `B="maybe": want 0 or 1`},
		{map[string]string{"A": "2"}, true, false, `A="2": want 0 or 1`},
	} {
		got, err := Bool(func(name string) string { return test.vars[name] }, test.fallback, "A", "B")
		if err == nil {
			if got != test.want || test.err != "" {
				t.Errorf("%v: got %v, want %v and error %q", test.vars, got, test.want, test.err)
			}
		} else if err.Error() != test.err {
			t.Errorf("%v: got error %q, want %q", test.vars, err, test.err)
		}
	}
}
