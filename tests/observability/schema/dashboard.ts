// What a dashboard of ours may hold, in the types of Grafana's own schema. Those leave the options of panels open (any record)
// and have no type of a Prometheus query; both are closed here, so that a wrong or unknown key is an error.

import type * as grafana from "@grafana/schema";
import type { Options as BarOptions } from "@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen";
import type {
  FieldConfig as HeatmapField,
  Options as HeatmapOptions,
} from "@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen";
import type { Options as StatOptions } from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type {
  FieldConfig as LineField,
  Options as LineOptions,
} from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

// JSON holds the values of enums, which TypeScript does not take for the enums themselves.
type Json<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends object
      ? { [Key in keyof T]: Json<T[Key]> }
      : T;

interface Source {
  type: "prometheus";
  uid: "${datasource}";
}

interface Target {
  refId: string;
  datasource: Source;
  expr: string;
  legendFormat: string;
  range: boolean;
  instant?: boolean;
  format?: "heatmap" | "table";
}

interface Fields<Custom> {
  defaults: Omit<Json<grafana.FieldConfig>, "custom"> & { custom?: Json<Custom> };
  overrides: Json<grafana.FieldConfigSource["overrides"]>;
}

type Given = "type" | "datasource" | "targets" | "options" | "fieldConfig" | "id" | "title" | "description" | "gridPos";

type Panel<Type, Options, Custom = undefined> = Omit<Json<grafana.Panel>, Given> & {
  type: Type;
  id: number;
  title: string;
  description: string;
  gridPos: grafana.GridPos;
  datasource: Source;
  targets: Target[];
  options: Json<Options>;
  fieldConfig: Fields<Custom>;
};

type AnyPanel =
  | Json<grafana.RowPanel>
  | Panel<"timeseries", LineOptions, LineField>
  | Panel<"stat", StatOptions>
  | Panel<"bargauge", BarOptions>
  | Panel<"heatmap", HeatmapOptions, HeatmapField>
  | Panel<"table", grafana.TableOptions, grafana.TableFieldOptions>;

export type Dashboard = Omit<Json<grafana.Dashboard>, "panels"> & { panels: AnyPanel[] };
