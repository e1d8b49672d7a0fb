package agboxv1_test

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// firstOwnNumber is where this project's additions to published messages and
// enums begin.
const firstOwnNumber = 50

var files = []protoreflect.FileDescriptor{
	agboxv1.File_agbox_v1_service_proto,
	agboxv1.File_agbox_v1_spec_proto,
	agboxv1.File_agbox_v1_sandbox_proto,
	agboxv1.File_agbox_v1_exec_proto,
	agboxv1.File_agbox_v1_event_proto,
}

// wireRows reads the published contract: kind, owner, name, number, type.
func wireRows(t *testing.T) [][5]string {
	t.Helper()
	f, err := os.Open("testdata/wire.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var rows [][5]string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if strings.HasPrefix(sc.Text(), "#") {
			continue
		}
		var row [5]string
		copy(row[:], strings.Split(sc.Text(), "\t"))
		rows = append(rows, row)
	}
	if len(rows) < 150 {
		t.Fatalf("the wire table has only %d rows; is it whole?", len(rows))
	}
	return rows
}

// contract lists what the descriptors say, in the words of the table.
func contract() map[[3]string][2]string {
	got := map[[3]string][2]string{}
	for _, file := range files {
		for i := range file.Services().Len() {
			addService(got, file.Services().Get(i))
		}
		for i := range file.Enums().Len() {
			enum := file.Enums().Get(i)
			for j := range enum.Values().Len() {
				v := enum.Values().Get(j)
				got[[3]string{"enum", string(enum.Name()), string(v.Name())}] = [2]string{strconv.Itoa(int(v.Number())), ""}
			}
		}
		for i := range file.Messages().Len() {
			msg := file.Messages().Get(i)
			for j := range msg.Fields().Len() {
				f := msg.Fields().Get(j)
				got[[3]string{"field", string(msg.Name()), string(f.Name())}] = [2]string{strconv.Itoa(int(f.Number())), typeOf(f)}
			}
		}
	}
	return got
}

func addService(got map[[3]string][2]string, svc protoreflect.ServiceDescriptor) {
	for i := range svc.Methods().Len() {
		m := svc.Methods().Get(i)
		out := string(m.Output().Name())
		if m.IsStreamingServer() {
			out = "stream " + out
		}
		got[[3]string{"rpc", string(svc.Name()), string(m.Name())}] = [2]string{"", fmt.Sprintf("%s -> %s", m.Input().Name(), out)}
	}
}

func typeOf(f protoreflect.FieldDescriptor) string {
	if f.IsMap() {
		return fmt.Sprintf("map<%s, %s>", scalarOf(f.MapKey()), scalarOf(f.MapValue()))
	}
	typ := scalarOf(f)
	switch {
	case f.IsList():
		return "repeated " + typ
	case f.HasOptionalKeyword():
		return "optional " + typ
	case f.ContainingOneof() != nil:
		return fmt.Sprintf("%s (oneof %s)", typ, f.ContainingOneof().Name())
	}
	return typ
}

func scalarOf(f protoreflect.FieldDescriptor) string {
	switch {
	case f.Kind() == protoreflect.EnumKind:
		return string(f.Enum().Name())
	case f.Kind() != protoreflect.MessageKind:
		return f.Kind().String()
	case f.Message().ParentFile().Package() == "agbox.v1":
		return string(f.Message().Name())
	}
	return string(f.Message().FullName())
}

func TestEveryRowOfTheWireContractHolds(t *testing.T) {
	got := contract()
	for _, row := range wireRows(t) {
		key := [3]string{row[0], row[1], row[2]}
		have, ok := got[key]
		if !ok {
			t.Errorf("%s %s.%s is missing", row[0], row[1], row[2])
			continue
		}
		if want := [2]string{row[3], row[4]}; have != want {
			t.Errorf("%s %s.%s is %v, published as %v", row[0], row[1], row[2], have, want)
		}
	}
}

func TestOwnAdditionsToPublishedTypesStartAt50(t *testing.T) {
	published, owners := map[[3]string]bool{}, map[[2]string]bool{}
	for _, row := range wireRows(t) {
		published[[3]string{row[0], row[1], row[2]}] = true
		owners[[2]string{row[0], row[1]}] = true
	}
	for key, have := range contract() {
		if key[0] == "rpc" || published[key] || !owners[[2]string{key[0], key[1]}] {
			continue
		}
		if n, _ := strconv.Atoi(have[0]); n < firstOwnNumber {
			t.Errorf("%s %s.%s is our own addition but has number %d", key[0], key[1], key[2], n)
		}
	}
}

func TestPackageAndServiceNamesAreThePublishedOnes(t *testing.T) {
	if got := agboxv1.SandboxService_ServiceDesc.ServiceName; got != "agbox.v1.SandboxService" {
		t.Errorf("service name is %q", got)
	}
}
