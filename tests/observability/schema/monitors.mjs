// Reads objects of Prometheus Operator's kinds by name, and prints what its schemas say against them.

import { readFileSync } from "node:fs";
import * as v1 from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

for (const [name, found] of Object.entries(JSON.parse(readFileSync(0, "utf-8")))) {
  const object = new v1[found.kind](found);
  try {
    object.validate();
  } catch (error) {
    console.log(`${name}: ${error.message}`);
  }
}
