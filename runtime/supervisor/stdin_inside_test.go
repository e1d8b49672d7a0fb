package supervisor

import (
	"fmt"
	"testing"
)

func TestWhoeverHasEndedIsForgottenBeforeWhoIsStillThere(t *testing.T) {
	in := newInput(nil, true)
	in.typist("person").count = 3
	for i := range 2 * maxWriters {
		in.typist(fmt.Sprint("script", i)).eof = true
	}
	if n := in.count("person"); n != 3 {
		t.Errorf("the count of the one who is still there is %d, not 3", n)
	}
	for i := range maxWriters {
		in.typist(fmt.Sprint("lasting", i)).count = 5
	}
	if in.writers["person"] != nil || in.count("lasting0") != 5 || len(in.writers) != maxWriters {
		t.Errorf("of those who are still there not the one is forgotten that has not typed for longest; %d are known", len(in.writers))
	}
}
