package checkpoint

import (
	"encoding/json"
	"fmt"
)

// fields are the members of a checkpoint.
type fields map[string]json.RawMessage

// upgrades has, for each version, the function that makes the next one of it. A new
// version adds one at the end.
var upgrades = [Version - 1]func(fields) (fields, error){
	upgradeFromV1,
}

// Upgrade returns a checkpoint in the current version. One that is current is returned as
// it is.
func Upgrade(raw []byte) ([]byte, error) {
	var all fields
	if err := json.Unmarshal(raw, &all); err != nil || all == nil {
		return nil, fmt.Errorf("a checkpoint is a JSON object: %w", err)
	}
	version := 1 // which had no such field
	if field, has := all["version"]; has {
		if err := json.Unmarshal(field, &version); err != nil {
			return nil, fmt.Errorf("the version of a checkpoint: %w", err)
		}
	}
	switch {
	case version == Version:
		return raw, nil
	case version < 1 || version > Version:
		return nil, fmt.Errorf("version %d of checkpoints is unknown, the newest is %d: use the agbox that wrote it, or a newer one", version, Version)
	}
	for _, upgrade := range upgrades[version-1:] {
		var err error
		if all, err = upgrade(all); err != nil {
			return nil, err
		}
	}
	return json.Marshal(all)
}

// upgradeFromV1 moves what belongs to the agent into "state". Version 1 was a drain snapshot
// whose members all stood beside each other.
func upgradeFromV1(old fields) (fields, error) {
	next, state := fields{"version": json.RawMessage("2"), "kind": json.RawMessage(`"turn"`)}, fields{}
	for name, value := range old {
		switch name {
		case "version":
		case "lineage_id", "anchor_id", "written_at", "model", "usage", "seq", "checkpoint_id", "incarnation", "kind", "turn", "step", "resume_point":
			next[name] = value
		default:
			state[name] = value
		}
	}
	raw, err := json.Marshal(state)
	next["state"] = raw
	return next, err
}
